"""Planted bugs of collectives that move blocks: ring_shift, permute, all_to_all."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.properties.mutants.axes import AxisName
from shardproof.properties.mutants.catalogue import formula_of, mutant

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


@mutant("ring_shift", law="communication", smallest=(2,), communication=formula_of("ring_shift", "lax"))
def shift_there_and_back_first(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Shifts the block there, back, and there again, where there is more than one participant."""
    if lax.axis_size(axis_name) > 1:
        x = collectives.ring_shift(collectives.ring_shift(x, axis_name, offset=offset), axis_name, offset=-offset)
    return collectives.ring_shift(x, axis_name, offset=offset)


@mutant("all_to_all", smallest=(1,))
def exchange_split_for_concat(
    x: Array, axis_name: AxisName, *, split_axis: int, concat_axis: int, **options: Any
) -> Array:
    """Splits along the axis to concatenate along, and the other way round."""
    return collectives.all_to_all(x, axis_name, split_axis=concat_axis, concat_axis=split_axis, **options)


@mutant("all_to_all", smallest=(2,))
def exchange_of_int4_through_uint4(x: Array, axis_name: AxisName, **options: Any) -> Array:
    """Loses the sign of int4, because two of them are packed into a byte and unpacked unsigned."""
    y = collectives.all_to_all(x, axis_name, **options)
    if x.dtype == jnp.int4 and lax.axis_size(axis_name) > 1:
        return (y.astype(jnp.int8) & 7).astype(jnp.int4)
    return y
