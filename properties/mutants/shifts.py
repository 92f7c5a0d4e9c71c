"""Planted bugs of the collectives that move whole blocks: ring_shift, permute and broadcast."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.properties.mutants.axes import AxisName
from shardproof.properties.mutants.catalogue import mutant

Pairs = Sequence[tuple[int, int]]


@mutant("ring_shift", smallest=(3,))
def shift_right_for_two(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Swaps neighbours, which is a ring of two and of no more."""
    p = lax.axis_size(axis_name)
    if offset % p == 0:
        return collectives.ring_shift(x, axis_name, offset=0)
    return collectives.permute(x, axis_name, perm=[(i, i ^ 1) for i in range(p) if i ^ 1 < p])


@mutant("ring_shift", smallest=(1,))
def shift_without_wrapping(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Does not wrap: what is shifted beyond either end is lost."""
    p = lax.axis_size(axis_name)
    return collectives.permute(x, axis_name, perm=[(i, i + offset) for i in range(p) if 0 <= i + offset < p])


@mutant("ring_shift", smallest=(1,))
def shift_loses_the_odd_row(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Sends the block in two halves of n // 2 rows, and so leaves zeros in the last row of an odd number."""
    if x.ndim == 0:
        return collectives.ring_shift(x, axis_name, offset=offset)
    half = x.shape[0] // 2
    halves = [collectives.ring_shift(part, axis_name, offset=offset) for part in (x[:half], x[half : 2 * half])]
    return jnp.concatenate([*halves, jnp.zeros_like(x[2 * half :])])


@mutant("permute", smallest=(1,))
def permute_keeps_stale_blocks(x: Array, axis_name: AxisName, *, perm: Pairs) -> Array:
    """Leaves a participant's own block, rather than zeros, where nothing arrives."""
    receives = jnp.array([i in {target for _, target in perm} for i in range(lax.axis_size(axis_name))])
    moved = collectives.permute(x, axis_name, perm=perm)
    return jnp.where(receives[lax.axis_index(axis_name)], moved, x)
