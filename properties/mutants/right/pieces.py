"""Pieces of several right implementations."""

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.properties.mutants.axes import AxisName, names


def spread(x: Array, axis_name: AxisName) -> Array:
    """The block, typed varying along the axis tuple, as the carry of a loop must be from the start."""
    result: Array = collectives.cast_varying(x, names(axis_name))
    return result


def accumulator(dtype: jnp.dtype) -> jnp.dtype:
    """The dtype to add up numbers of a dtype in: float32 or int32, which wraps around as narrower integers do."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jnp.dtype(jnp.complex64)
    return jnp.dtype(jnp.float32 if jnp.issubdtype(dtype, jnp.floating) else jnp.int32)


def added(blocks: Array) -> Array:
    """The sum of blocks `[p, …]`."""
    return jnp.sum(blocks.astype(accumulator(blocks.dtype)), axis=0).astype(blocks.dtype)


def divided(total: Array, count: int) -> Array:
    """A sum as a mean: in its own dtype for floats, in float32 for integers."""
    if jnp.issubdtype(total.dtype, jnp.inexact):
        return (total.astype(accumulator(total.dtype)) / count).astype(total.dtype)
    return total.astype(jnp.float32) / count


def own(pieces: Array, axis_name: AxisName) -> Array:
    """The piece of `[p, …]` that has this device's index."""
    return lax.dynamic_index_in_dim(pieces, lax.axis_index(axis_name), keepdims=False)
