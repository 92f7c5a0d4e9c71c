"""Planted bugs of reduce_scatter."""

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.properties.mutants.axes import AxisName
from shardproof.properties.mutants.catalogue import mutant


@mutant("reduce_scatter", smallest=(2,))
def scatter_of_the_next_dimension(
    x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False
) -> Array:
    """Cuts the dimension behind the one that is asked for, if it is tiled."""
    at = (scatter_dimension + 1) % x.ndim if tiled else scatter_dimension
    return collectives.reduce_scatter(x, axis_name, scatter_dimension=at, tiled=tiled)


@mutant("reduce_scatter", smallest=(2,))
def scatter_without_the_last_term(
    x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False
) -> Array:
    """Leaves the last participant's block out of the sum."""
    p = lax.axis_size(axis_name)
    x = jnp.where((lax.axis_index(axis_name) == p - 1) & (p > 1), jnp.zeros_like(x), x)
    return collectives.reduce_scatter(x, axis_name, scatter_dimension=scatter_dimension, tiled=tiled)


@mutant("reduce_scatter", smallest=(2,))
def scatter_of_every_pth_row(
    x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False
) -> Array:
    """Gives participant i the rows i, i + p, …, not a contiguous piece."""
    p, at = lax.axis_size(axis_name), scatter_dimension
    dealt = jnp.concatenate([jnp.take(x, jnp.arange(i, x.shape[at], p), axis=at) for i in range(p)], axis=at)
    return collectives.reduce_scatter(dealt, axis_name, scatter_dimension=at, tiled=tiled)


@mutant("reduce_scatter", smallest=(2,))
def scatter_of_float16_is_whole(
    x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False
) -> Array:
    """Cuts the fractions off sums of float16."""
    piece = collectives.reduce_scatter(x, axis_name, scatter_dimension=scatter_dimension, tiled=tiled)
    if x.dtype == jnp.float16 and lax.axis_size(axis_name) > 1:
        return jnp.trunc(piece)
    return piece
