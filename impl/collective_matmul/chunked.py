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
from shardproof.impl.collective_matmul.operands import UNROLLED, Axes, Left, Result, Right, aligned, multiply, unwritten
from shardproof.impl.collective_matmul.passing import arriving, assembled
from shardproof.impl.collectives import Block

CHUNKS = 8
"""How many chunks of rows there are, uneven by a row at most; of few rows, one for every two."""


def by_rows(lhs: Left, rhs: Right, axes: Axes) -> Result:
    """`A[…, M, K_Y] W[K, N_Z] -> [M, N_Z]`, whose blocks come the shorter way."""
    dtype, rows, m = jnp.result_type(lhs, rhs), lhs.ndim - 2, lhs.shape[-2]
    if lax.axis_size(axes) > UNROLLED:
        return shorter_way(columns_of_lhs(lhs, rhs, axes), axes).astype(dtype)
    moving, stays = aligned(lhs, rhs, axes)
    count = max(1, min(CHUNKS, math.ceil(m / 2)))
    written: list[Block] = []
    for start, stop in itertools.pairwise(m * i // count for i in range(count + 1)):
        chunk = _whole(lax.slice_in_dim(moving, start, stop, axis=rows), axes)
        product = multiply(chunk, stays).astype(dtype)
        into = written[0] if written else unwritten((*lhs.shape[:-1], rhs.shape[1]), product)
        written = [lax.dynamic_update_slice_in_dim(into, product, start, rows)]
    return written[0]


def _whole(block: Block, axes: Axes) -> Block:
    """The columns of all participants."""
    *rest, columns = block.shape
    return assembled(arriving(block, columns, axes), block.ndim - 1, (*rest, columns * lax.axis_size(axes)))
