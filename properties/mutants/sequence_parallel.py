"""Planted bugs of a multilayer perceptron over a sharded sequence; those of a norm before it have a module beside."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import sequence_parallel as forms
from shardproof.impl.collectives import all_gather, cast_varying, varying
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.catalogue import formula_of, mutant

NAIVE = formula_of("sequence_parallel_mlp", "naive")


@mutant("sequence_parallel_mlp", smallest=(1,))
def mlp_without_relu(x: Array, w_in: Array, w_out: Array, axis_name: AxisName) -> Array:
    """Takes no relu, as if the sign of all hidden values were right."""
    positive = forms.sequence_parallel_mlp(x, w_in, w_out, axis_name)
    return positive - forms.sequence_parallel_mlp(x, -w_in, w_out, axis_name)


@mutant("sequence_parallel_mlp", smallest=(1,), law="communication", communication=NAIVE)
def mlp_that_adds_up_everywhere(x: Array, w_in: Array, w_out: Array, axis_name: AxisName) -> Array:
    """Adds up all positions on all participants, each of which keeps its own."""
    axes, dtype, own = names(axis_name), x.dtype, x.shape[0]
    x, w_in, w_out = cast_varying((x, w_in, w_out), {*axes, *varying(x), *varying(w_in), *varying(w_out)})
    if not x.size:
        return x
    wide = jnp.promote_types(dtype, jnp.float32)
    hidden = jnp.matmul(all_gather(x, axes, tiled=True), w_in, preferred_element_type=wide).astype(dtype)
    total = lax.psum(jnp.matmul(jax.nn.relu(hidden), w_out, preferred_element_type=wide), axes)
    return lax.dynamic_slice_in_dim(total.astype(dtype), lax.axis_index(axes) * own, own)


@mutant("sequence_parallel_mlp", smallest=(2,), law="overlap", overlap="exposed<=1/6")
def mlp_that_hides_nothing(x: Array, w_in: Array, w_out: Array, axis_name: AxisName) -> Array:
    """Gathers before it multiplies, and multiplies before it scatters."""
    return forms.sequence_parallel_mlp(x, w_in, w_out, axis_name)


@mutant("normalised_sequence_parallel_mlp", smallest=(2,), law="overlap", overlap="exposed<=1/6")
def normalised_mlp_that_hides_nothing(*operands: Any, **options: Any) -> Array:
    """Gathers before it multiplies, and multiplies before it scatters."""
    return forms.normalised_sequence_parallel_mlp(*operands, **options)
