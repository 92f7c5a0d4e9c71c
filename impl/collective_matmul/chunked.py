"""Chunks of rows, each gathered whole while the one before is multiplied.

A product of gathered rows is one product over all columns: nothing is added up in memory, which costs more than the
arithmetic where products are fast. The first chunk has nothing beside it, so there are several. A loop is a barrier, in
which one chunk's transfers would have no product beside them: among more participants than a loop is unrolled for, all
rows are one chunk, and each block is multiplied as it comes by.
"""

import itertools
import math

import jax.numpy as jnp
from jax import lax

from shardproof.impl.collective_matmul.gathered import columns_of_lhs, shorter_way
from shardproof.impl.collective_matmul.operands import (
    UNROLLED,
    Axes,
    Left,
    Result,
    Right,
    aligned,
    multiply,
    unwritten,
    waiting,
)
from shardproof.impl.collective_matmul.passing import Arrived, arriving, assembled
from shardproof.impl.collectives import Block

CHUNKS = 8
"""How many chunks of rows there are, uneven by a row at most; of few rows, one for every two."""


def by_rows(lhs: Left, rhs: Right, axes: Axes) -> Result:
    """`A[…, M, K_Y] W[K, N_Z] -> [M, N_Z]`, whose blocks come the shorter way.

    Among more than four, transfers of a chunk follow one another. Beside them the product of the chunk before is cut
    into as many parts of columns, each of which waits for one: a compiler that has the choice puts transfers late.
    """
    dtype, rows, m, n, p = jnp.result_type(lhs, rhs), lhs.ndim - 2, lhs.shape[-2], rhs.shape[1], lax.axis_size(axes)
    if p > UNROLLED:
        return shorter_way(columns_of_lhs(lhs, rhs, axes), axes).astype(dtype)
    moving, stays = aligned(lhs, rhs, axes)
    starts, steps = _evenly(m, max(1, min(CHUNKS, math.ceil(m / 2)))), p // 2 if p > 4 else 1

    def gathered(top: int, bottom: int, before: Arrived = ()) -> Arrived:
        chunk = lax.slice_in_dim(moving, top, bottom, axis=rows)
        held = waiting(chunk, [one for one, _ in before]) if before and steps > 1 else chunk
        return arriving(held, chunk.shape[-1], axes)

    chunks, result, last = [*itertools.pairwise(starts)], list[Block](), list[Block]()
    coming = gathered(*chunks[0])
    for (top, bottom), after in itertools.zip_longest(chunks, chunks[1:]):
        arrived, coming = coming, gathered(after[0], after[1], coming) if after else []
        whole = assembled(arrived, rows + 1, (*lhs.shape[:-2], bottom - top, stays.shape[0]))
        behind = [one for one, _ in coming[1:]]
        for step, (left, right) in enumerate(itertools.pairwise(_evenly(n, max(1, min(steps, n))))):
            ready = [*last, *behind[max(0, 2 * step - 2) : 2 * step]]
            at = waiting(jnp.asarray(left), ready) if ready and steps > 1 else left
            last = [multiply(whole, lax.dynamic_slice_in_dim(stays, at, right - left, 1)).astype(dtype)]
            into = result[0] if result else unwritten((*lhs.shape[:-1], n), last[0])
            result = [lax.dynamic_update_slice(into, last[0], (*[0] * rows, top, left))]
    return result[0]


def _evenly(size: int, parts: int) -> list[int]:
    """Where so many parts of a size start, and where the last one ends."""
    return [size * part // parts for part in range(parts + 1)]
