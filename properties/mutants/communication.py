"""Planted waste: right values, types and gradients, by more communication than the formula says."""

import math

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.catalogue import formula_of, mutant


@mutant("ring_shift", law="communication", smallest=(2,), communication=formula_of("ring_shift", "lax"))
def shift_there_and_back_first(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Shifts the block there, back, and there again, where there is more than one participant."""
    if lax.axis_size(axis_name) > 1:
        x = collectives.ring_shift(collectives.ring_shift(x, axis_name, offset=offset), axis_name, offset=-offset)
    return collectives.ring_shift(x, axis_name, offset=offset)


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


@mutant("all_reduce", law="communication", smallest=(2,), communication=formula_of("all_reduce", "ring_all_reduce"))
def reduce_with_whole_blocks(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Passes whole blocks round the ring, (p-1)n bytes where 2(p-1)n/p do."""
    if op != "sum":
        raise NotImplementedError(f"op={op!r}: only sums")
    result = moving = x.astype(jnp.int32) if x.dtype == jnp.bool_ else x
    for _ in range(lax.axis_size(axis_name) - 1):
        moving = collectives.ring_shift(moving, axis_name)
        result = result + moving
    return collectives.cast_varying(result, names(axis_name))


@mutant("reduce_scatter", law="communication", smallest=(1,), communication=formula_of("reduce_scatter", "lax"))
def scatter_with_wide_sums(x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False) -> Array:
    """Adds up bfloat16 and float16 in float32 on the way, which doubles the bytes."""
    wide = x.astype(jnp.float32) if x.dtype in (jnp.bfloat16, jnp.float16) else x
    piece = collectives.reduce_scatter(wide, axis_name, scatter_dimension=scatter_dimension, tiled=tiled)
    return piece.astype(x.dtype)
