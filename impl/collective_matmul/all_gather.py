"""Matrix products that gather an operand, overlapped: each block is multiplied while the next one travels.

p is the number of participants. Source of the idea: Wang et al., "Overlap Communication with Dependent Computation
via Decomposition in Large Deep Learning Models", 2023 (doi 10.1145/3567955.3567959). Sums of 16-bit floats
are kept in float32 until all blocks have come by, and rounded once. A block is cut in half in the dimension
that is gathered; an odd row goes with the first half, and a half without rows is not sent.

A step of a loop sends on the block that it multiplies, and neither depends on the other. No compiler moves work from
one step into another: so the first hop, beside the product of a participant's own block, comes before the loop, and the
last product after it. A permute's transpose is the permute back: the gradient of a ring is a ring, in which cotangents
of the gathered operand travel in that operand's dtype, in which JAX adds up cotangents.

All of them are typed varying, over one axis or a tuple of axes in any order, and raise ValueError for an unknown axis,
and for operands whose contracted sizes differ. Shapes named below are those of whole products in bfloat16, over 4
participants of v5e, as XLA:TPU schedules them.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from shardproof.impl.algorithms.pieces import shift
from shardproof.impl.arguments import AxisName
from shardproof.impl.collective_matmul.operands import (
    Left,
    Result,
    Right,
    aligned,
    check_product,
    empty_array,
    in_halves,
    multiply,
    ring_loop,
    rounded_product,
    write,
)
from shardproof.impl.collectives import Block, axis_index
from shardproof.impl.indices import around

Absorb = Callable[[Block, Block, Block, Array | int], Block]
"""A state, the block that came so far from the left and the one that came as far from the right, to the next state."""


@check_product("lhs")
def ring_all_gather_matmul_lhs_contracting(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M, K_Y] W[K, N_Z] -> [M, N_Z]`.

    Blocks of A go round the ring: p - 1 permutes of a block.

    Best where links carry one transfer at a time: the fastest on H100 by timelines.
    """
    p, me, columns = lax.axis_size(axis_name), axis_index(axis_name), lhs.shape[-1]
    lhs, rhs = aligned(lhs, rhs, axis_name)

    def product(block: Block, distance: Array | int) -> Block:  # with the rows of W that meet the columns of its owner
        owner = around(me - distance, p)
        return multiply(block, lax.dynamic_slice_in_dim(rhs, owner * columns, columns, 0))

    def step(carry: tuple[Block, Block], distance: Array) -> tuple[Block, Block]:
        block, total = carry
        return shift(block, axis_name, 1), total + product(block, distance)

    total = product(lhs, 0)
    if p > 1:
        block, total = ring_loop(step, (shift(lhs, axis_name, 1), total), 1, p - 1, axis_name)
        total = total + product(block, p - 1)
    return total.astype(jnp.result_type(lhs, rhs))


@check_product("lhs")
def bidirectional_all_gather_matmul_lhs_contracting(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M, K_Y] W[K, N_Z] -> [M, N_Z]`.

    Half blocks of A go each way round the ring: p - 1 steps of two permutes, and of two products.

    Best where the links are the limit: the fastest at 8192 cubed.
    """
    p, me, columns = lax.axis_size(axis_name), axis_index(axis_name), lhs.shape[-1]
    lhs, rhs = aligned(lhs, rhs, axis_name)
    rightward, leftward = in_halves(lhs, -1)

    def product(block: Block, distance: Array | int, first: int) -> Block:
        start = around(me - distance, p) * columns + first
        return multiply(block, lax.dynamic_slice_in_dim(rhs, start, block.shape[-1], 0))

    def add(total: Block, rightward: Block, leftward: Block, distance: Array | int) -> Block:
        total = total + product(rightward, distance, 0)
        return total + product(leftward, -distance, rightward.shape[-1])

    total = product(lhs, 0, 0)
    rightward, leftward, total = pass_both_ways(rightward, leftward, total, add, p - 1, axis_name)
    if p > 1:
        total = add(total, rightward, leftward, p - 1)
    return total.astype(jnp.result_type(lhs, rhs))


@check_product()
def ring_all_gather_matmul_lhs(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M_Y, K] W[K, N_Z] -> [M, N_Z]`.

    Blocks of A go round the ring: p - 1 permutes of a block.

    Best where links carry one transfer at a time: the fastest on H100 by timelines.
    """
    p, me, rows = lax.axis_size(axis_name), axis_index(axis_name), lhs.shape[-2]
    lhs, rhs = aligned(lhs, rhs, axis_name)

    def write_product(result: Block, block: Block, distance: Array | int) -> Block:
        return write(result, rounded_product(block, rhs), around(me - distance, p) * rows, lhs.ndim - 2)

    def step(carry: tuple[Block, Block], distance: Array) -> tuple[Block, Block]:
        block, result = carry
        return shift(block, axis_name, 1), write_product(result, block, distance)

    result = own_rows(lhs, rhs, axis_name)
    if p > 1:
        block, result = ring_loop(step, (shift(lhs, axis_name, 1), result), 1, p - 1, axis_name)
        result = write_product(result, block, p - 1)
    return result


@check_product()
def bidirectional_all_gather_matmul_lhs(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M_Y, K] W[K, N_Z] -> [M, N_Z]`.

    Half blocks of A go each way round the ring: p - 1 steps of two permutes, and of two products.

    Best where the links are the limit: the fastest at 8192 cubed.
    """
    p, me, rows = lax.axis_size(axis_name), axis_index(axis_name), lhs.shape[-2]
    lhs, rhs = aligned(lhs, rhs, axis_name)
    rightward, leftward = in_halves(lhs, -2)

    def write_product(result: Block, block: Block, distance: Array | int, first: int) -> Block:
        return write(result, rounded_product(block, rhs), around(me - distance, p) * rows + first, lhs.ndim - 2)

    def write_products(result: Block, rightward: Block, leftward: Block, distance: Array | int) -> Block:
        result = write_product(result, rightward, distance, 0)
        return write_product(result, leftward, -distance, rightward.shape[-2])

    result = own_rows(lhs, rhs, axis_name)
    rightward, leftward, result = pass_both_ways(rightward, leftward, result, write_products, p - 1, axis_name)
    if p > 1:
        result = write_products(result, rightward, leftward, p - 1)
    return result


@check_product()
def joined_all_gather_matmul_lhs(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M_Y, K] W[K, N_Z] -> [M, N_Z]`.

    Half blocks of A go each way, and the two that arrive are joined: p - 1 steps of one product of full size.

    Best where the links are the limit and products are small: the fastest at 1024x2048 by 2048x8192 on v4.
    """
    p, me, rows, dimension = lax.axis_size(axis_name), axis_index(axis_name), lhs.shape[-2], lhs.ndim - 2
    lhs, rhs = aligned(lhs, rhs, axis_name)
    rightward, leftward = in_halves(lhs, -2)
    first = rightward.shape[-2]

    def write_product(result: Block, rightward: Block, leftward: Block, distance: Array | int) -> Block:
        product = rounded_product(jnp.concatenate([rightward, leftward], -2), rhs)
        result = write(result, product[..., :first, :], around(me - distance, p) * rows, dimension)
        return write(result, product[..., first:, :], around(me + distance, p) * rows + first, dimension)

    result = own_rows(lhs, rhs, axis_name)
    rightward, leftward, result = pass_both_ways(rightward, leftward, result, write_product, p - 1, axis_name)
    if p > 1:
        result = write_product(result, rightward, leftward, p - 1)
    return result


@check_product("rhs")
def ring_all_gather_matmul_rhs(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M_Z, K] W[K_Y, N] -> [M_Z, N]`.

    Blocks of W go round the ring: p - 1 permutes of a block.

    Best where links carry one transfer at a time: the fastest on H100 by timelines.
    """
    p, me, rows = lax.axis_size(axis_name), axis_index(axis_name), rhs.shape[0]
    lhs, rhs = aligned(lhs, rhs, axis_name)

    def product(block: Block, distance: Array | int) -> Block:  # with the columns of A that meet the rows of its owner
        owner = around(me - distance, p)
        return multiply(lax.dynamic_slice_in_dim(lhs, owner * rows, rows, lhs.ndim - 1), block)

    def step(carry: tuple[Block, Block], distance: Array) -> tuple[Block, Block]:
        block, total = carry
        return shift(block, axis_name, 1), total + product(block, distance)

    total = product(rhs, 0)
    if p > 1:
        block, total = ring_loop(step, (shift(rhs, axis_name, 1), total), 1, p - 1, axis_name)
        total = total + product(block, p - 1)
    return total.astype(jnp.result_type(lhs, rhs))


@check_product("rhs")
def joined_all_gather_matmul_rhs(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M_Z, K] W[K_Y, N] -> [M_Z, N]`.

    Half blocks of W go each way, and the two that arrive are joined: p - 1 steps of one product of full size.

    Best where the links are the limit: the fastest at 8192 cubed, since halves of W make small products.
    """
    p, me, rows = lax.axis_size(axis_name), axis_index(axis_name), rhs.shape[0]
    lhs, rhs = aligned(lhs, rhs, axis_name)
    rightward, leftward = in_halves(rhs, 0)

    def columns(distance: Array | int, first: int, size: int) -> Block:
        return lax.dynamic_slice_in_dim(lhs, around(me - distance, p) * rows + first, size, lhs.ndim - 1)

    def add(total: Block, rightward: Block, leftward: Block, distance: Array | int) -> Block:
        first, second = rightward.shape[0], leftward.shape[0]
        met = [columns(distance, 0, first), columns(-distance, first, second)]
        return total + multiply(jnp.concatenate(met, -1), jnp.concatenate([rightward, leftward]))

    total = multiply(columns(0, 0, rows), rhs)
    rightward, leftward, total = pass_both_ways(rightward, leftward, total, add, p - 1, axis_name)
    if p > 1:
        total = add(total, rightward, leftward, p - 1)
    return total.astype(jnp.result_type(lhs, rhs))


def pass_both_ways(
    right: Block, left: Block, state: Block, absorb: Absorb, steps: int, axis_name: AxisName
) -> tuple[Block, Block, Block]:
    """One block goes rightward round the ring, and one leftward, and what arrives is absorbed while it is sent on.

    Returns:
        The blocks after so many steps, which are not absorbed yet, and the state with all that arrived before.
    """

    def step(carry: tuple[Block, Block, Block], distance: Array) -> tuple[Block, Block, Block]:
        right, left, state = carry
        return shift(right, axis_name, 1), shift(left, axis_name, -1), absorb(state, right, left, distance)

    if not steps:
        return right, left, state
    return ring_loop(step, (shift(right, axis_name, 1), shift(left, axis_name, -1), state), 1, steps, axis_name)


def own_rows(lhs: Left, rhs: Right, axis_name: AxisName) -> Block:
    """The rows of all participants, of which those of this one are written."""
    product = rounded_product(lhs, rhs)
    whole = empty_array((*lhs.shape[:-2], lhs.shape[-2] * lax.axis_size(axis_name), rhs.shape[1]), product)
    return write(whole, product, axis_index(axis_name) * lhs.shape[-2], lhs.ndim - 2)
