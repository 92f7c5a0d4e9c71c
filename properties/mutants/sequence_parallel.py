"""Planted bugs of a multilayer perceptron over a sharded sequence."""

from jax import Array

from shardproof.impl import sequence_parallel as forms
from shardproof.properties.mutants.axes import AxisName
from shardproof.properties.mutants.catalogue import formula_of, mutant

NAIVE = formula_of("sequence_parallel_mlp", "naive")


@mutant("sequence_parallel_mlp", smallest=(1,))
def mlp_without_relu(x: Array, w_in: Array, w_out: Array, axis_name: AxisName) -> Array:
    """Takes no relu, as if the sign of all hidden values were right."""
    positive = forms.sequence_parallel_mlp(x, w_in, w_out, axis_name)
    return positive - forms.sequence_parallel_mlp(x, -w_in, w_out, axis_name)


@mutant("sequence_parallel_mlp", smallest=(2,), law="overlap", overlap="exposed<=1/6")
def mlp_that_hides_nothing(x: Array, w_in: Array, w_out: Array, axis_name: AxisName) -> Array:
    """Gathers before it multiplies, and multiplies before it scatters."""
    return forms.sequence_parallel_mlp(x, w_in, w_out, axis_name)
