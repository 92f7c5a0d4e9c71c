"""Planted bugs of the norm before a multilayer perceptron over a sharded sequence."""

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import sequence_parallel as forms
from shardproof.impl.collectives import cast_varying, varying
from shardproof.properties.mutants.axes import AxisName, names, widened
from shardproof.properties.mutants.catalogue import formula_of, mutant

NAIVE = formula_of("normalised_sequence_parallel_mlp", "naive")


def _behind(roots: Array, x: Array, scale: Array, w_in: Array, w_out: Array, axis_name: AxisName) -> Array:
    """The perceptron of positions by these roots."""
    normalised = (widened(x) / roots * widened(scale)).astype(x.dtype)
    return forms.sequence_parallel_mlp(normalised, w_in, w_out, axis_name)


@mutant("normalised_sequence_parallel_mlp", smallest=(2,), law="gradient")
def scale_gradient_not_reduced(
    x: Array, scale: Array, w_in: Array, w_out: Array, axis_name: AxisName, *, epsilon: float
) -> Array:
    """The gradient of the scale is what the first participant's positions say, and not the sum of all."""
    varied = cast_varying(scale, {*names(axis_name)}.union(*map(varying, (x, scale, w_in, w_out))))
    own = jnp.where(lax.axis_index(names(axis_name)) == 0, varied, lax.stop_gradient(varied))
    return forms.normalised_sequence_parallel_mlp(x, own, w_in, w_out, axis_name, epsilon=epsilon)


@mutant("normalised_sequence_parallel_mlp", smallest=(1,))
def norm_of_the_sequences_together(
    x: Array, scale: Array, w_in: Array, w_out: Array, axis_name: AxisName, *, epsilon: float
) -> Array:
    """Takes the mean over the sequences of a position as well as over its features."""
    squares = jnp.mean(jnp.square(widened(x)), axis=(1, 2), keepdims=True)
    return _behind(jnp.sqrt(squares + epsilon), x, scale, w_in, w_out, axis_name)
