"""Matrix products that scatter their sum, overlapped: every term is computed while the sum that it goes to travels.

p is the number of participants; a piece is one participant's part of the result. Source of the idea: Wang et al., 2023
(doi 10.1145/3567955.3567959). All of them: `A[…, M, K_Y] W[K_Y, N] -> [M_Y, N]` (dimension 0) or
`[M, N_Y]` (dimension 1), typed varying, over one axis or a tuple of axes in any order. A piece is cut in half in the
dimension that is scattered; an odd row goes with the first half, and a half without rows is not sent.

A sum starts where it has the longest way to go, at the neighbour behind the participant that it is for. `sums` says
in which dtype sums of 16-bit floats travel: `"accumulator"`, in float32, rounded once, where they arrive, an error of
half a unit in the last place beside that of float32; or `"operands"`, in half the bytes, rounded at every one of p - 1
hops: an error of at most p - 1 units of roundoff more, times the sum of the absolute values of the terms (Higham,
"Accuracy and Stability of Numerical Algorithms", 2002, section 4.2). The gradient is a ring that gathers the cotangent.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from shardproof.impl.algorithms.pieces import WAYS, shift
from shardproof.impl.arguments import AxisName
from shardproof.impl.collective_matmul.operands import (
    Left,
    Result,
    Right,
    Sums,
    aligned,
    check_product,
    empty_array,
    part_of_product,
    ring_loop,
    travelling,
    write,
)
from shardproof.impl.collectives import Block, axis_index
from shardproof.impl.indices import around

Term = Callable[[int, Array | int, Sequence[Block]], Block]
"""A half, or quarter, of this participant's product, for the participant so far behind, once other blocks are there."""


@check_product()
def ring_matmul_reduce_scatter(
    lhs: Left, rhs: Right, axis_name: AxisName, *, scatter_dimension: int = 0, sums: Sums = "accumulator"
) -> Result:
    """Sums go round the ring: p - 1 permutes of a piece.

    Best where a link takes as long as the products beside it: of all forms this one alone exposes nothing then, forward
    and with its gradient.

    Raises:
        ValueError: for an unknown axis, operands whose contracted sizes differ, a dimension that is
            neither 0 nor 1, one that does not divide by the number of participants, or `sums` that is neither.
    """
    p, me, dtype = lax.axis_size(axis_name), axis_index(axis_name), travelling(sums, lhs, rhs)
    lhs, rhs = aligned(lhs, rhs, axis_name)
    size = piece_size(lhs, rhs, scatter_dimension, p)

    def term(distance: Array | int) -> Block:
        owner = around(me - distance, p)  # of the sum that comes by in this step
        return part_of_product(lhs, rhs, owner * size, size, scatter_dimension)

    def step(total: Block, distance: Array) -> Block:
        own = term(distance)
        return (shift(total, axis_name, 1).astype(own.dtype) + own).astype(dtype)

    total = ring_loop(step, term(1).astype(dtype), 2, p + 1, axis_name)
    return total.astype(jnp.result_type(lhs, rhs))


@check_product()
def bidirectional_matmul_reduce_scatter(
    lhs: Left, rhs: Right, axis_name: AxisName, *, scatter_dimension: int = 0, sums: Sums = "accumulator"
) -> Result:
    """Half of every sum goes each way round the ring: p - 1 steps of two permutes, and of two products.

    Raises:
        ValueError: as `ring_matmul_reduce_scatter`.
    """
    p, dtype = lax.axis_size(axis_name), travelling(sums, lhs, rhs)
    lhs, rhs = aligned(lhs, rhs, axis_name)
    term, sizes = parts_of_terms(lhs, rhs, axis_name, scatter_dimension, 2)
    halves = range(len(sizes))

    def step(totals: list[Block], distance: Array) -> list[Block]:
        arrived = [shift(totals[i], axis_name, WAYS[i]) for i in halves]
        own = [term(i, distance, ()) for i in halves]
        return [(one.astype(of.dtype) + of).astype(dtype) for one, of in zip(arrived, own, strict=True)]

    totals = ring_loop(step, [term(i, 1, ()).astype(dtype) for i in halves], 2, p + 1, axis_name)
    return jnp.concatenate(totals, lhs.ndim - 2 + scatter_dimension).astype(jnp.result_type(lhs, rhs))


@check_product()
def alternating_matmul_reduce_scatter(
    lhs: Left, rhs: Right, axis_name: AxisName, *, scatter_dimension: int = 0, sums: Sums = "operands"
) -> Result:
    """Half sums go each way, in turns: a half's product is computed, added and rounded while the other half travels.

    A piece of one row cannot take turns, and goes round whole.

    Best in time, as XLA:TPU schedules it, at 1024x8192 by 8192x2048 over 4 participants of v4, v5e and v5p, and at
    8192x16384 by 16384x8192 over 4 of v4, v5e and v6e: it makes one kernel of a product, an addition and a rounding,
    and takes 1.03 times the unsharded product on v5e there (1.42 with `sums="accumulator"`).

    Raises:
        ValueError: as `ring_matmul_reduce_scatter`.
    """
    dtype = travelling(sums, lhs, rhs)
    lhs, rhs = aligned(lhs, rhs, axis_name)
    term, sizes = parts_of_terms(lhs, rhs, axis_name, scatter_dimension, 2)
    if len(sizes) < 2:
        return ring_matmul_reduce_scatter(lhs, rhs, axis_name, scatter_dimension=scatter_dimension, sums=sums)
    halves = take_turns(term, axis_name, dtype, jnp.result_type(lhs, rhs))
    return join_parts(halves, lhs.ndim - 2 + scatter_dimension)


def take_turns(
    term: Term,
    axis_name: AxisName,
    dtype: Any,
    result: Any,
    behind: Sequence[Block] = (),
    beside: Sequence[Block] = (),
) -> list[Block]:
    """The sums of two halves: while one travels, the other one's term is computed and added to it.

    Each term waits for the sum that it is added to, so that a compiler makes one kernel of product, addition and
    rounding, and for the term before it, so that it is computed beside the transfer that it is to hide. Each half
    travels beside the other half's term alone: where the links are the limit, a third is exposed.

    Arguments:
        term: the terms.
        axis_name: of the ring.
        dtype: in which sums travel.
        result: the dtype of what is returned.
        behind: blocks that are there before the first term.
        beside: blocks that are there before the last two, and come beside the terms before.
    """
    p = lax.axis_size(axis_name)

    def total(half: int, distance: Array | int, arrived: Block, before: Sequence[Block]) -> Block:
        own = term(half, distance, (arrived, *before))
        return arrived.astype(own.dtype) + own

    def turn(carry: tuple[Block, Block], distance: Array | int) -> tuple[Block, Block, Block]:
        first, arrived = carry  # the first half's sum is complete, the second half's has come
        second = total(1, distance, arrived, [first]).astype(dtype)
        return shift(first, axis_name, WAYS[0]), second, shift(second, axis_name, WAYS[1])

    def step(carry: tuple[Block, Block], distance: Array) -> tuple[Block, Block]:
        passed, second, arrived = turn(carry, distance)
        return total(0, distance + 1, passed, [second]).astype(dtype), arrived

    first = term(0, 1, behind).astype(dtype)
    second = term(1, 1, (first,)).astype(dtype)
    if p == 1:
        return [first.astype(result), second.astype(result)]
    passed, arrived = shift(first, axis_name, WAYS[0]), shift(second, axis_name, WAYS[1])
    if p > 2:
        first = total(0, 2, passed, [second]).astype(dtype)
        passed, second, arrived = turn(ring_loop(step, (first, arrived), 2, p - 1, axis_name), p - 1)
    done = total(0, p, passed, [second, *beside]).astype(result)
    return [done, total(1, p, arrived, [done]).astype(result)]


def parts_of_terms(
    lhs: Left, rhs: Right, axis_name: AxisName, dimension: int, most: int, *, first: int = 0, rows: int | None = None
) -> tuple[Term, list[int]]:
    """The terms of pieces in as many parts, and the parts' sizes, none of them empty unless the piece is.

    The first parts have a row more. Every other one goes leftward. Pieces may be of `rows` rows, from `first` on.
    """
    p, me = lax.axis_size(axis_name), axis_index(axis_name)
    rows = piece_size(lhs, rhs, dimension, p) if rows is None else rows
    count = max(1, min(most, rows))
    sizes = [rows // count + (i < rows % count) for i in range(count)]

    def term(part: int, distance: Array | int, before: Sequence[Block]) -> Block:
        start = first + around(me - WAYS[part % 2] * distance, p) * rows + sum(sizes[:part])
        return part_of_product(lhs, rhs, start, sizes[part], dimension, before)

    return term, sizes


def piece_size(lhs: Left, rhs: Right, dimension: int, p: int) -> int:
    """The size of a piece in the dimension that is scattered."""
    return (lhs.shape[-2] if dimension == 0 else rhs.shape[-1]) // p


def join_parts(parts: Sequence[Block], dimension: int) -> Block:
    """The parts of a piece, one behind the other in a dimension."""
    shape, start = list(parts[0].shape), 0
    shape[dimension] = sum(part.shape[dimension] for part in parts)
    whole = empty_array(shape, parts[0])
    for part in parts:
        whole = write(whole, part, start, dimension)
        start += part.shape[dimension]
    return whole
