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


@mutant("ring_shift", smallest=(3,))
def shift_for_powers_of_two(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Wraps with a bit mask, which is right only where the number of participants is a power of two."""
    p = lax.axis_size(axis_name)
    pairs = {(i + offset) & (p - 1): i for i in range(p)}
    return collectives.permute(x, axis_name, perm=[(source, target) for target, source in pairs.items()])


@mutant("ring_shift", smallest=(1,))
def shift_loses_the_odd_row(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Sends the block in two halves of n // 2 rows, and so leaves zeros in the last row of an odd number."""
    if x.ndim == 0:
        return collectives.ring_shift(x, axis_name, offset=offset)
    half = x.shape[0] // 2
    halves = [collectives.ring_shift(part, axis_name, offset=offset) for part in (x[:half], x[half : 2 * half])]
    return jnp.concatenate([*halves, jnp.zeros_like(x[2 * half :])])


@mutant("ring_shift", smallest=(2,))
def shift_in_tiles_of_eight(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Sends more than eight rows in tiles of eight, and keeps what is left over."""
    rows = x.shape[0] if x.ndim else 0
    if rows <= 8 or rows % 8 == 0:
        return collectives.ring_shift(x, axis_name, offset=offset)
    tiled = rows - rows % 8
    return jnp.concatenate([collectives.ring_shift(x[:tiled], axis_name, offset=offset), x[tiled:]])


@mutant("permute", smallest=(1,))
def permute_keeps_stale_blocks(x: Array, axis_name: AxisName, *, perm: Pairs) -> Array:
    """Leaves a participant's own block, rather than zeros, where nothing arrives."""
    receives = jnp.array([i in {target for _, target in perm} for i in range(lax.axis_size(axis_name))])
    moved = collectives.permute(x, axis_name, perm=perm)
    return jnp.where(receives[lax.axis_index(axis_name)], moved, x)


@mutant("broadcast", smallest=(2,))
def broadcast_from_zero(x: Array, axis_name: AxisName, *, root: int = 0) -> Array:
    """Ignores the root and sends the block of participant 0."""
    return collectives.broadcast(x, axis_name, root=0)


@mutant("broadcast", smallest=(2,))
def broadcast_by_multiplication(x: Array, axis_name: AxisName, *, root: int = 0) -> Array:
    """Masks the other blocks by a product with zero, which leaves their NaN and infinities in the sum."""
    if x.dtype == jnp.complex64:
        return collectives.broadcast(x, axis_name, root=root)
    own = lax.axis_index(axis_name) == root
    return lax.psum(x * own.astype(x.dtype), axis_name).astype(x.dtype)
