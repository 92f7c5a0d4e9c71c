"""Planted waste: right values, types and gradients, by more communication than the formula says."""

import math
from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax

from impl import collectives
from oracles.communication import Cost
from properties.cases import Case
from properties.communication.bounds import full_bytes, members
from properties.mutants.axes import AxisName
from properties.mutants.catalogue import mutant


def one_permute(case: Case, backward: bool) -> Cost:
    """A shift, and its transpose: the block, once."""
    return Cost.permutes(1, full_bytes(case))


def ring(case: Case, backward: bool) -> Cost:
    """A ring, and its transpose: p - 1 permutes of the block."""
    p = members(case)
    return Cost.permutes(p - 1, (p - 1) * full_bytes(case) // p)


def one_collective(case: Case, backward: bool) -> Cost:
    """One all-gather of the block or one reduce-scatter of the full vector, each the transpose of the other."""
    if (case.contract == "all_gather") != backward:
        return Cost.of({"all_gather": 1}, {"all_gather": full_bytes(case) // members(case)})
    return Cost.of({"reduce_scatter": 1}, {"reduce_scatter": full_bytes(case)})


@mutant("ring_shift", law="communication", smallest=(2,), communication=one_permute)
def shift_there_and_back_first(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Shifts the block there, back, and there again, where there is more than one member."""
    if lax.axis_size(axis_name) > 1:
        x = collectives.ring_shift(collectives.ring_shift(x, axis_name, offset=offset), axis_name, offset=-offset)
    return collectives.ring_shift(x, axis_name, offset=offset)


@mutant("all_gather", law="communication", smallest=(2,), communication=ring)
def gather_every_block_twice(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """A ring that sends every block together with a copy of it."""
    p, index = lax.axis_size(axis_name), lax.axis_index(axis_name)
    moving = jnp.stack([x, x])
    blocks = jnp.zeros((p, *x.shape), x.dtype).at[index].set(x)
    for step in range(1, p):
        moving = collectives.ring_shift(moving, axis_name)
        blocks = blocks.at[(index - step) % p].set(moving[step % 2])
    return _joined(list(blocks), axis, tiled)


@mutant("all_gather", law="communication", smallest=(2,), communication=one_collective)
def gather_by_summing_padded_blocks(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Adds up blocks that stand in a slot of their own among zeros: twice the bytes, and p times the operand."""
    p, index = lax.axis_size(axis_name), lax.axis_index(axis_name)
    if p == 1 or x.dtype == bool or x.size == 0:
        return collectives.all_gather(x, axis_name, axis=axis, tiled=tiled)
    slots = jnp.zeros((p, *x.shape), x.dtype).at[index].set(x)
    return _joined(list(lax.psum(slots, axis_name)), axis, tiled)


@mutant("reduce_scatter", law="communication", smallest=(2,), communication=one_collective)
def scatter_by_reducing_everything(
    x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False
) -> Array:
    """Sums the whole vector on every member, and keeps one's own piece."""
    p, index = lax.axis_size(axis_name), lax.axis_index(axis_name)
    if p == 1 or x.size == 0:
        return collectives.reduce_scatter(x, axis_name, scatter_dimension=scatter_dimension, tiled=tiled)
    whole = lax.psum(x, axis_name)
    width = math.ceil(x.shape[scatter_dimension] / p)
    piece = lax.dynamic_slice_in_dim(whole, index * width, width, scatter_dimension)
    return piece if tiled else jnp.squeeze(piece, scatter_dimension)


def _joined(blocks: Sequence[Array], axis: int, tiled: bool) -> Array:
    return jnp.concatenate(blocks, axis) if tiled else jnp.stack(blocks, axis)
