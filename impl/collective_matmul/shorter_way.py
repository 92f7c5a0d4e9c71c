"""Matrix products that gather an operand whose blocks come whole, the shorter way round the ring: in floor(p/2) steps.

The first two are the parts of other forms that gather: of those that are paired, chunked, and of transformer blocks.
"""

import itertools
import math

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from shardproof.impl.algorithms.pieces import shift
from shardproof.impl.arguments import AxisName
from shardproof.impl.collective_matmul.all_gather import own_rows, pass_both_ways
from shardproof.impl.collective_matmul.operands import (
    UNROLLED,
    Left,
    Result,
    Right,
    aligned,
    check_product,
    empty_array,
    multiply,
    rounded_product,
    write,
)
from shardproof.impl.collective_matmul.passing import arriving, assembled
from shardproof.impl.collectives import Block, axis_index
from shardproof.impl.indices import around

CHUNKS = 8
"""The number of chunks of rows, uneven by a row at most; of few rows, one for every two."""


@check_product("lhs")
def gather_columns_and_multiply(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M, K_Y] W[K, N_Z] -> [M, N_Z]`: p - 1 permutes of a block of A, of which a neighbour passes on the last."""
    p, me, columns = lax.axis_size(axis_name), axis_index(axis_name), lhs.shape[-1]
    lhs, rhs = aligned(lhs, rhs, axis_name)

    def product(block: Block, distance: Array | int) -> Block:
        owner = around(me - distance, p)
        return multiply(block, lax.dynamic_slice_in_dim(rhs, owner * columns, columns, 0))

    def add(total: Block, right: Block, left: Block, distance: Array | int) -> Block:
        return total + product(right, distance) + product(left, -distance)

    both = (p - 1) // 2
    right, left, total = pass_both_ways(lhs, lhs, product(lhs, 0), add, both, axis_name)
    opposite = [shift(right, axis_name, 1)] if p % 2 == 0 else []
    if both:
        total = add(total, right, left, both)
    for block in opposite:
        total = total + product(block, p // 2)
    return total.astype(jnp.result_type(lhs, rhs))


@check_product()
def gather_rows_and_multiply(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M_Y, K] W[K, N_Z] -> [M, N_Z]`: p - 1 permutes of a block of A.

    Of four participants the owner sends the last to the one opposite, over the same two links as a neighbour would, and
    so it can begin before anything has arrived.
    """
    p, me, rows = lax.axis_size(axis_name), axis_index(axis_name), lhs.shape[-2]
    lhs, rhs = aligned(lhs, rhs, axis_name)

    def write_product(result: Block, block: Block, distance: Array | int) -> Block:
        return write(result, rounded_product(block, rhs), around(me - distance, p) * rows, lhs.ndim - 2)

    def write_products(result: Block, right: Block, left: Block, distance: Array | int) -> Block:
        return write_product(write_product(result, right, distance), left, -distance)

    both, result = (p - 1) // 2, own_rows(lhs, rhs, axis_name)
    opposite = [shift(lhs, axis_name, 2)] if p == 4 else []
    right, left, result = pass_both_ways(lhs, lhs, result, write_products, both, axis_name)
    if p % 2 == 0:
        opposite = opposite or [shift(right, axis_name, 1)]
    if both:
        result = write_products(result, right, left, both)
    for block in opposite:
        result = write_product(result, block, p // 2)
    return result


@check_product("lhs")
def chunked_all_gather_matmul_lhs_contracting(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M, K_Y] W[K, N_Z] -> [M, N_Z]`.

    Eight chunks of rows, each gathered whole, the shorter way, while the one before is multiplied: 8 (p - 1) permutes
    of 15 rows or more. A product of gathered rows is one product over all columns: nothing is added up in memory, which
    costs more than the arithmetic where products are fast. The first chunk has nothing beside it. A loop is a barrier,
    in which one chunk's transfers would have no product beside them: among more than 8 participants all rows are one
    chunk, and each block is multiplied as it comes by.

    Best where sums in memory take longer than products: at 8192x8192 by 8192x16384 the fastest over 4 of v4, v5p, v6e
    and tpu7x; on v5e 1.10 times the product, where `paired` takes 1.01.

    Raises:
        ValueError: for an unknown axis, or operands whose contracted sizes differ.
    """
    p, (*batch, m, columns) = lax.axis_size(axis_name), lhs.shape
    if p > UNROLLED:
        return gather_columns_and_multiply(lhs, rhs, axis_name)
    lhs, rhs = aligned(lhs, rhs, axis_name)
    count = max(1, min(CHUNKS, math.ceil(m / 2)))
    written: list[Result] = []
    for start, stop in itertools.pairwise(m * i // count for i in range(count + 1)):
        chunk = lax.slice_in_dim(lhs, start, stop, axis=len(batch))
        whole = assembled(arriving(chunk, columns, axis_name), len(batch) + 1, (*chunk.shape[:-1], p * columns))
        product = rounded_product(whole, rhs)
        into = written[0] if written else empty_array((*batch, m, rhs.shape[1]), product)
        written = [write(into, product, start, len(batch))]
    return written[0]
