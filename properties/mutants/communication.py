"""Planted waste: right values, types and gradients, by more communication than the formula says."""

import math

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.properties.mutants.axes import AxisName
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
