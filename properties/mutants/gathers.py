"""Planted bugs of all_gather, all_gather_invariant and reduce_scatter."""

import math
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.properties.mutants.axes import AxisName, in_the_inverse_order
from shardproof.properties.mutants.catalogue import formula_of, mutant


@mutant("all_gather", smallest=(2, 2, 2))
def gather_in_the_inverse_order(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Orders the blocks by the inverse of the order of the axes: wrong of three in a circle alone."""
    return collectives.all_gather(x, in_the_inverse_order(axis_name), axis=axis, tiled=tiled)


@mutant("all_gather", smallest=(1,))
def gather_always_in_front(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Ignores the axis and gathers along the first."""
    return collectives.all_gather(x, axis_name, axis=0, tiled=tiled)


@mutant("all_gather_invariant", smallest=(1,), claims=("empty_blocks",))
def gather_returns_empty_blocks(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Returns an empty block as it came, not in the shape of the gathered one."""
    return x if x.size == 0 else collectives.all_gather_invariant(x, axis_name, axis=axis, tiled=tiled)


@mutant("all_gather", smallest=(1,))
def gather_skips_size_one(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Returns the block as it came where the axis has size 1, without the new dimension."""
    if lax.axis_size(axis_name) == 1:
        return x
    return collectives.all_gather(x, axis_name, axis=axis, tiled=tiled)


@mutant("all_gather_invariant", smallest=(2,))
def gather_by_multiplication(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Sums float32 that a product with a one-hot vector put into its slot, which spreads NaN and infinities."""
    if x.dtype != jnp.float32:
        return collectives.all_gather_invariant(x, axis_name, axis=axis, tiled=tiled)
    slots = jnp.arange(lax.axis_size(axis_name)) == lax.axis_index(axis_name)
    blocks = lax.psum(jnp.multiply.outer(slots.astype(x.dtype), x), axis_name)
    return jnp.concatenate(list(blocks), axis) if tiled else jnp.moveaxis(blocks, 0, axis)


@mutant("reduce_scatter", smallest=(2,))
def scatter_of_every_pth_row(x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, **options: Any) -> Array:
    """Gives participant i the rows i, i + p, …, not a contiguous piece."""
    p, at = lax.axis_size(axis_name), scatter_dimension
    dealt = jnp.concatenate([jnp.take(x, jnp.arange(i, x.shape[at], p), axis=at) for i in range(p)], axis=at)
    return collectives.reduce_scatter(dealt, axis_name, scatter_dimension=at, **options)


@mutant("reduce_scatter", law="communication", smallest=(2,), communication=formula_of("reduce_scatter", "lax"))
def scatter_by_reducing_everything(
    x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False
) -> Array:
    """Sums the whole vector on every participant, and keeps one's own piece."""
    p, index = lax.axis_size(axis_name), lax.axis_index(axis_name)
    if p == 1 or x.size == 0:
        return collectives.reduce_scatter(x, axis_name, scatter_dimension=scatter_dimension, tiled=tiled)
    whole = lax.psum(x, axis_name)
    width = math.ceil(x.shape[scatter_dimension] / p)
    piece = lax.dynamic_slice_in_dim(whole, index * width, width, scatter_dimension)
    return piece if tiled else jnp.squeeze(piece, scatter_dimension)
