"""Matrix products that gather an operand, overlapped: each block is multiplied while the next one travels.

p is the number of participants. Source of the idea: Wang et al., "Overlap Communication with Dependent Computation
via Decomposition in Large Deep Learning Models", 2023 (doi 10.1145/3567955.3567959). A block is cut in half in the
dimension that is gathered; an odd row goes with the first half, and a half without rows is not sent.

A block is sent on while it is multiplied (`pass_round`): neither depends on the other. A permute's transpose is the
permute back: the gradient of a ring is a ring, in which cotangents of the gathered operand travel in that operand's
dtype, in which JAX adds up cotangents.

All of them are typed varying. Shapes named below are those of whole products in bfloat16, over 4
participants of v5e, as XLA:TPU schedules them.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from shardproof.impl.arguments import AxisName
from shardproof.impl.collective_matmul.operands import check_operands
from shardproof.impl.collectives import Block, axis_index
from shardproof.impl.indices import around
from shardproof.impl.rings import (
    UNROLLED,
    Left,
    Result,
    Right,
    align_types,
    empty_array,
    in_halves,
    multiply,
    pass_halves,
    pass_round,
    pass_shorter_way,
    pass_whole,
    rounded_product,
    schedule_after,
    shift,
    shift_both,
    write,
)

CHUNKS = 8
"""The number of chunks of rows, uneven by a row at most; of few rows, one for every two."""


@check_operands
def ring_all_gather_matmul_lhs_contracting(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M, K_Y] W[K, N_Z] -> [M, N_Z]`.

    Blocks of A go round the ring: p - 1 permutes of a block.

    Best where links carry one transfer at a time: the fastest on H100 by timelines.
    """
    return add_products(lhs, rhs, axis_name, pass_whole)


def add_products(lhs: Left, rhs: Right, axis_name: AxisName, travel: Callable[..., Block]) -> Result:
    """`A[…, M, K_Y] W[K, N_Z] -> [M, N_Z]`: multiplies each block of A, or half, by the rows of W for its columns."""
    lhs, rhs = align_types(lhs, rhs, axis_name=axis_name)

    def product(block: Block, start: Array) -> Block:
        return multiply(block, lax.dynamic_slice_in_dim(rhs, start, block.shape[-1], 0))

    def add(total: Block, block: Block, start: Array) -> Block:
        return total + product(block, start)

    own = product(lhs, axis_index(axis_name) * lhs.shape[-1])
    return travel(lhs, -1, own, add, axis_name).astype(jnp.result_type(lhs, rhs))


@check_operands
def bidirectional_all_gather_matmul_lhs_contracting(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M, K_Y] W[K, N_Z] -> [M, N_Z]`.

    Half blocks of A go each way round the ring: p - 1 steps of two permutes, and of two products.

    Best where the links are the limit: the fastest at 8192 cubed.
    """
    return add_products(lhs, rhs, axis_name, pass_halves)


@check_operands
def ring_all_gather_matmul_lhs(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M_Y, K] W[K, N_Z] -> [M, N_Z]`.

    Blocks of A go round the ring: p - 1 permutes of a block.

    Best where links carry one transfer at a time: the fastest on H100 by timelines.
    """
    return write_products(lhs, rhs, axis_name, pass_whole)


def write_products(lhs: Left, rhs: Right, axis_name: AxisName, travel: Callable[..., Block]) -> Result:
    """`A[…, M_Y, K] W[K, N_Z] -> [M, N_Z]`: multiplies each block of A, or half, and writes the rows of its owner."""
    lhs, rhs = align_types(lhs, rhs, axis_name=axis_name)
    rows = lhs.ndim - 2

    def write_product(result: Block, block: Block, start: Array) -> Block:
        return write(result, rounded_product(block, rhs), start, rows)

    own = rounded_product(lhs, rhs)
    whole = empty_array((*lhs.shape[:-2], lhs.shape[-2] * lax.axis_size(axis_name), rhs.shape[1]), own)
    start = write(whole, own, axis_index(axis_name) * lhs.shape[-2], rows)
    return travel(lhs, rows, start, write_product, axis_name)


@check_operands
def bidirectional_all_gather_matmul_lhs(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M_Y, K] W[K, N_Z] -> [M, N_Z]`.

    Half blocks of A go each way round the ring: p - 1 steps of two permutes, and of two products.

    Best where the links are the limit: the fastest at 8192 cubed.
    """
    return write_products(lhs, rhs, axis_name, pass_halves)


@check_operands
def ring_all_gather_matmul_rhs(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M_Z, K] W[K_Y, N] -> [M_Z, N]`.

    Blocks of W go round the ring: p - 1 permutes of a block.

    Best where links carry one transfer at a time: the fastest on H100 by timelines.
    """
    lhs, rhs = align_types(lhs, rhs, axis_name=axis_name)

    def product(block: Block, start: Array) -> Block:  # with the columns of A for the rows of its owner
        return multiply(lax.dynamic_slice_in_dim(lhs, start, block.shape[0], lhs.ndim - 1), block)

    def add(total: Block, block: Block, start: Array) -> Block:
        return total + product(block, start)

    own = product(rhs, axis_index(axis_name) * rhs.shape[0])
    return pass_whole(rhs, 0, own, add, axis_name).astype(jnp.result_type(lhs, rhs))


@check_operands
def joined_all_gather_matmul_rhs(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M_Z, K] W[K_Y, N] -> [M_Z, N]`.

    Half blocks of W go each way, and the two that arrive are joined: p - 1 steps of one product of full size.

    Best where the links are the limit: the fastest at 8192 cubed, since halves of W make small products.
    """
    p, me, rows = lax.axis_size(axis_name), axis_index(axis_name), rhs.shape[0]
    lhs, rhs = align_types(lhs, rhs, axis_name=axis_name)
    right, left = in_halves(rhs, 0)
    middle = right.shape[0]

    def columns(distance: Array | int, first: int, size: int) -> Block:
        return lax.dynamic_slice_in_dim(lhs, around(me - distance, p) * rows + first, size, lhs.ndim - 1)

    def add(total: Block, right: Block, left: Block, distance: Array | int) -> Block:
        met = [columns(distance, 0, middle), columns(-distance, middle, rows - middle)]
        return total + multiply(jnp.concatenate(met, -1), jnp.concatenate([right, left]))

    total = pass_round([right, left], multiply(columns(0, 0, rows), rhs), add, axis_name)
    return total.astype(jnp.result_type(lhs, rhs))


@check_operands
def chunked_all_gather_matmul_lhs_contracting(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M, K_Y] W[K, N_Z] -> [M, N_Z]`.

    Chunks of rows, eight if there are 15 rows or more, are each gathered whole, the shorter way, while the one before
    is multiplied: p - 1 permutes for each. Each chunk is one product over all columns: nothing is added up in memory,
    which costs more than the arithmetic where products are fast. No product is beside the first chunk, nor would be
    beside a chunk in a loop, which is a barrier: among more than 8 participants all rows are one chunk, and each block
    is multiplied as it comes by.

    Best where sums in memory take longer than products: at 8192x8192 by 8192x16384 the fastest over 4 of v4, v5p, v6e
    and tpu7x; on v5e 1.10 times the product, where `paired` takes 1.01.
    """
    p, (*batch, m, columns) = lax.axis_size(axis_name), lhs.shape
    if p > UNROLLED:
        return add_products(lhs, rhs, axis_name, pass_shorter_way)
    lhs, rhs = align_types(lhs, rhs, axis_name=axis_name)
    count = max(1, min(CHUNKS, math.ceil(m / 2)))
    bounds = [m * i // count for i in range(count + 1)]

    def product(start: int, stop: int) -> Block:
        chunk = lax.slice_in_dim(lhs, start, stop, axis=len(batch))
        whole = assemble(gather_shorter_way(chunk, -1, axis_name), -1, (*chunk.shape[:-1], p * columns))
        return rounded_product(whole, rhs)

    products = ((product(start, stop), start) for start, stop in itertools.pairwise(bounds))
    return assemble(products, len(batch), (*batch, m, rhs.shape[1]))


def gather_shorter_way(
    block: Block, dimension: int, axis_name: AxisName, *, passed_on: bool = False
) -> list[tuple[Block, Array]]:
    """All participants' blocks, and where each starts in the whole, this one's first and the farthest one's last.

    The last of an even number is passed on by a neighbour, or among four sent by its owner (see `pass_shorter_way`),
    unless it is `passed_on` there as well, because sums share the links.
    """
    p, me, size = lax.axis_size(axis_name), axis_index(axis_name), block.shape[dimension]
    right = left = block
    found = [(block, me * size)]
    opposite = [shift(block, axis_name, 2)] if p == 4 and not passed_on else []
    for away in range(1, (p - 1) // 2 + 1):
        right, left = shift_both(right, left, axis_name)
        found += [(right, around(me - away, p) * size), (left, around(me + away, p) * size)]
    if p % 2 == 0:
        opposite = opposite or [shift(right, axis_name, 1)]
    return found + [(one, around(me - p // 2, p) * size) for one in opposite]


def assemble(
    parts: Iterable[tuple[Block, Array | int]], dimension: int, shape: Sequence[int], *, in_turn: bool = False
) -> Block:
    """An array of a shape, from parts and their starts in a dimension; `in_turn`: each is written after the last."""
    whole: list[Block] = []
    for part, at in parts:
        start = schedule_after(at, whole) if in_turn else at
        whole = [write(whole[0] if whole else empty_array(shape, part), part, start, dimension)]
    return whole[0]
