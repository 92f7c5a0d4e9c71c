"""Matrix products that scatter their sum, or add it up everywhere, overlapped: terms are computed while sums travel.

p is the number of participants; a piece is one participant's part of the result. Source of the idea: Wang et al., 2023
(doi 10.1145/3567955.3567959). Typed varying unless a form says otherwise. Reduce-scatters are `A[…, M, K_Y] W[K_Y, N]
-> [M_Y, N]` (dimension 0) or `[M, N_Y]` (dimension 1), all-reduces `A[…, M, K_Y] W[K_Y, N] -> [M, N]`. A piece is cut
in half in the dimension that is scattered; an odd row goes with the first half, and a half without rows is not sent.
Transformer blocks are a form that gathers, relu, and one of these: `X[…, B, D_Y] W_in[D, F_Y] -> relu -> W_out[F_Y, D]
-> [B, D_Y]`, with the rounding and the derivative of `shardproof.impl.collective_matmul.naive.transformer_block`,
unless sums travel in 16 bits.

A sum starts at the neighbour behind the participant that it is for, and so goes the whole way round. `sums` is the
dtype in which sums of 16-bit floats travel: `"accumulator"`, float32, rounded once, where they arrive, an error of
half a unit in the last place beside that of float32; or `"operands"`, half the bytes, rounded at every one of p - 1
hops: an error of at most p - 1 units of roundoff more, times the sum of the absolute values of the terms (Higham,
"Accuracy and Stability of Numerical Algorithms", 2002, section 4.2). The gradient is a ring that gathers the cotangent.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from shardproof.impl.arguments import AxisName
from shardproof.impl.collective_matmul.all_gather import (
    add_products,
    assemble,
    ring_all_gather_matmul_lhs_contracting,
)
from shardproof.impl.collective_matmul.operands import Sums, check_operands
from shardproof.impl.collectives import Block, accumulator, all_gather_invariant, all_reduce, axis_index
from shardproof.impl.indices import around
from shardproof.impl.rings import (
    WAYS,
    Left,
    Result,
    Right,
    align_types,
    empty_array,
    multiply,
    pass_round,
    pass_shorter_way,
    ring_loop,
    schedule_after,
    shift,
    shift_both,
    write,
)

Term = Callable[[int, Array | int, Sequence[Block]], Block]
"""`(part, distance, before)` to a half, or quarter, of this participant's product for the one at that distance behind,
scheduled after other blocks."""


@check_operands
def ring_matmul_reduce_scatter(
    lhs: Left, rhs: Right, axis_name: AxisName, *, scatter_dimension: int = 0, sums: Sums = "accumulator"
) -> Result:
    """Sums go round the ring: p - 1 permutes of a piece.

    Best where a link takes as long as the products beside it: of all forms this one alone exposes nothing then, forward
    and with its gradient.
    """
    p, me, dtype = lax.axis_size(axis_name), axis_index(axis_name), travel_dtype(sums, lhs, rhs)
    lhs, rhs = align_types(lhs, rhs, axis_name=axis_name)
    size = piece_size(lhs, rhs, scatter_dimension, p)

    def term(distance: Array | int) -> Block:
        owner = around(me - distance, p)  # of the sum that comes by in this step
        return part_of_product(lhs, rhs, owner * size, size, scatter_dimension)

    def step(total: Block, distance: Array) -> Block:
        own = term(distance)
        return (shift(total, axis_name, 1).astype(own.dtype) + own).astype(dtype)

    total = ring_loop(step, term(1).astype(dtype), 2, p + 1, axis_name)
    return total.astype(jnp.result_type(lhs, rhs))


@check_operands
def bidirectional_matmul_reduce_scatter(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """Half of every sum of rows goes each way, in the accumulator's dtype: p - 1 steps of two permutes and products."""
    lhs, rhs = align_types(lhs, rhs, axis_name=axis_name)
    term, sizes = parts_of_terms(lhs, rhs, axis_name, 0, 2)
    halves = range(len(sizes))

    def step(totals: list[Block], distance: Array) -> list[Block]:
        arrived = [shift(totals[i], axis_name, WAYS[i]) for i in halves]
        return [arrived[i] + term(i, distance, ()) for i in halves]

    totals = ring_loop(step, [term(i, 1, ()) for i in halves], 2, lax.axis_size(axis_name) + 1, axis_name)
    return jnp.concatenate(totals, lhs.ndim - 2).astype(jnp.result_type(lhs, rhs))


@check_operands
def alternating_matmul_reduce_scatter(
    lhs: Left, rhs: Right, axis_name: AxisName, *, scatter_dimension: int = 0, sums: Sums = "operands"
) -> Result:
    """Half sums go each way, in turns: a half's product is computed, added and rounded while the other half travels.

    A piece of one row cannot take turns, and goes round whole.

    Best in time, as XLA:TPU schedules it, at 1024x8192 by 8192x2048 over 4 participants of v4, v5e and v5p, and at
    8192x16384 by 16384x8192 over 4 of v4, v5e and v6e: it makes one kernel of a product, an addition and a rounding,
    and takes 1.03 times the unsharded product on v5e there (1.42 with `sums="accumulator"`).
    """
    lhs, rhs = align_types(lhs, rhs, axis_name=axis_name)
    if piece_size(lhs, rhs, scatter_dimension, lax.axis_size(axis_name)) < 2:
        return ring_matmul_reduce_scatter(lhs, rhs, axis_name, scatter_dimension=scatter_dimension, sums=sums)
    return join_parts(take_turns(lhs, rhs, axis_name, scatter_dimension, sums), lhs.ndim - 2 + scatter_dimension)


@check_operands
def alternating_matmul_all_reduce(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """Half sums of rows go each way, in turns, for one half of the rows while the other half is gathered, both ways.

    4(p-1) permutes of sums and as many of finished rows, each of half of ceil(M/2p) rows; of fewer than 2p rows there
    is one part, and half as many permutes. Rows are padded to a multiple. Typed varying.

    Best in time for large products, forward: at 8192x16384 by 16384x8192 over 4 participants of v5e 1.30 times the
    unsharded product as XLA:TPU schedules it, which takes 1.79 times for its own, and 2.57 for the naive form.
    """
    p, m, rows = lax.axis_size(axis_name), lhs.shape[-2], lhs.ndim - 2
    parts = 2 if m >= 2 * p else 1
    # cast first: the gradient adds up replicas, and would add up the padded rows too
    lhs, rhs = align_types(lhs, rhs, axis_name=axis_name)
    lhs = _pad_rows(lhs, parts * p)
    done: list[Block] = []
    whole: list[Block] = []
    size = lhs.shape[-2] // parts
    for first in [part * size for part in range(parts)]:
        if size >= 2 * p:
            of_part: Any = {"first": first, "rows": size // p, "behind": done, "beside": whole}
            done = take_turns(lhs, rhs, axis_name, 0, "operands", **of_part)
        else:  # a piece of one row cannot take turns
            part = lax.slice_in_dim(lhs, first, first + size, axis=rows)
            piece = ring_matmul_reduce_scatter(part, rhs, axis_name, sums="operands")
            done = [piece, piece[..., 1:, :]]
        into = whole[0] if whole else empty_array((*lhs.shape[:-1], rhs.shape[1]), done[0])
        whole = [_gather_halves(done, into, first, axis_name)]
    return whole[0][..., :m, :]


@check_operands
def scattered_matmul_all_reduce(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """Half sums of rows go each way, in turns, and one all-gather collects them; typed invariant.

    2(p-1) permutes, each of half of ceil(M/p) rows, or p - 1 of one row; rows are padded to a multiple. Its derivative
    is that of the naive form: the gradient is two products, and sends nothing.

    Best in time for small products, and with a gradient: at 1024x8192 by 8192x2048 over 4 participants of v5e 2.38
    times the unsharded product, as XLA:TPU schedules it, which takes 2.45 times for its own.
    """
    lhs, rhs = align_types(lhs, rhs, axis_name=axis_name)
    rows, m, dtype = lhs.ndim - 2, lhs.shape[-2], jnp.result_type(lhs, rhs)
    if not m:  # a constant, whose derivative JAX does not find in a branch under vmap (`custom_jvp_branch.py`)
        return all_reduce(multiply(lhs, rhs), axis_name).astype(dtype)

    @jax.custom_jvp
    def total(lhs: Left, rhs: Right) -> Result:
        padded = _pad_rows(lhs, lax.axis_size(axis_name))
        piece = alternating_matmul_reduce_scatter(padded, rhs, axis_name)
        return all_gather_invariant(piece, axis_name, axis=rows, tiled=True)[..., :m, :]

    @total.defjvp
    def _(primals: tuple[Left, Right], tangents: tuple[Left, Right]) -> tuple[Result, Result]:
        tangent = jax.jvp(multiply, primals, tangents)[1]
        return total(*primals), all_reduce(tangent, axis_name).astype(dtype)

    found: Result = total(lhs, rhs)
    return found


@check_operands
def overlapped_transformer_block(x: Left, w_in: Right, w_out: Right, axis_name: AxisName) -> Result:
    """One ring after the other: 2(p-1) permutes, of blocks of X and of sums.

    Best where links carry one transfer at a time: at two of six shapes on H100, by timelines.
    """
    hidden = jax.nn.relu(ring_all_gather_matmul_lhs_contracting(x, w_in, axis_name))
    return ring_matmul_reduce_scatter(hidden, w_out, axis_name, scatter_dimension=1)


@check_operands
def alternating_transformer_block(x: Left, w_in: Right, w_out: Right, axis_name: AxisName) -> Result:
    """Blocks come the shorter way, whole; half sums go each way, in turns, as in `alternating_matmul_reduce_scatter`.

    Best in time for small blocks over 4 participants of v5e, as XLA:TPU schedules them. At 8192x8192 by 8192x16384 by
    16384x8192 it takes 1.05 times the unsharded products there, where XLA's own form takes 1.38 times and the naive one
    1.61.
    """
    hidden = jax.nn.relu(add_products(x, w_in, axis_name, pass_shorter_way))
    return alternating_matmul_reduce_scatter(hidden, w_out, axis_name, scatter_dimension=1)


def take_turns(
    lhs: Left,
    rhs: Right,
    axis_name: AxisName,
    dimension: int,
    sums: Sums,
    *,
    first: int = 0,
    rows: int | None = None,
    behind: Sequence[Block] = (),
    beside: Sequence[Block] = (),
) -> list[Block]:
    """The sums of two halves: while one travels, the other one's term is computed and added to it.

    Each term is scheduled after the sum that it is added to, so that a compiler makes one kernel of product, addition
    and rounding, and after the term before it, so that it is computed beside the transfer that it is to hide. Each half
    travels beside the other half's term alone: where the links are the limit, a third is exposed.

    Pieces follow one another in a dimension, of `rows` each from the row `first` on; None: of all rows. The first term
    is scheduled after the blocks `behind`, the last two after those `beside`.
    """
    p, dtype, result = lax.axis_size(axis_name), travel_dtype(sums, lhs, rhs), jnp.result_type(lhs, rhs)
    term, _ = parts_of_terms(lhs, rhs, axis_name, dimension, 2, first=first, rows=rows)

    def total(half: int, distance: Array | int, arrived: Block, before: Sequence[Block]) -> Block:
        own = term(half, distance, (arrived, *before))
        return arrived.astype(own.dtype) + own

    def turn(carry: tuple[Block, Block], distance: Array | int) -> tuple[Block, Block, Block]:
        ours, arrived = carry  # the first half's sum is complete, the second half's has come
        theirs = total(1, distance, arrived, [ours]).astype(dtype)
        return shift(ours, axis_name, 1), theirs, shift(theirs, axis_name, -1)

    def step(carry: tuple[Block, Block], distance: Array) -> tuple[Block, Block]:
        passed, theirs, arrived = turn(carry, distance)
        return total(0, distance + 1, passed, [theirs]).astype(dtype), arrived

    ours = term(0, 1, behind).astype(dtype)
    theirs = term(1, 1, (ours,)).astype(dtype)
    if p == 1:
        return [ours.astype(result), theirs.astype(result)]
    passed, arrived = shift_both(ours, theirs, axis_name)
    if p > 2:
        ours = total(0, 2, passed, [theirs]).astype(dtype)
        passed, theirs, arrived = turn(ring_loop(step, (ours, arrived), 2, p - 1, axis_name), p - 1)
    done = total(0, p, passed, [theirs, *beside]).astype(result)
    return [done, total(1, p, arrived, [done]).astype(result)]


def parts_of_terms(
    lhs: Left, rhs: Right, axis_name: AxisName, dimension: int, most: int, *, first: int = 0, rows: int | None = None
) -> tuple[Term, list[int]]:
    """The terms of pieces in at most `most` parts, and the parts' sizes, none of them empty unless the piece is.

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


def part_of_product(
    lhs: Left, rhs: Right, start: Array, size: int, dimension: int, before: Sequence[Array] = ()
) -> Result:
    """`size` rows (dimension 0) or columns (1) of `lhs @ rhs`, scheduled after the blocks `before`.

    It is `start` that depends on them, and in derivatives, which need not wait, it does not.
    """

    def product(lhs: Left, rhs: Right, start: Array) -> Result:
        if dimension == 0:
            return multiply(lax.dynamic_slice_in_dim(lhs, start, size, lhs.ndim - 2), rhs)
        return multiply(lhs, lax.dynamic_slice_in_dim(rhs, start, size, 1))

    @jax.custom_jvp
    def late(lhs: Left, rhs: Right, start: Array, later: Array) -> Result:
        return product(lhs, rhs, later)

    @late.defjvp
    def _(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Result, Result]:
        lhs, rhs, start, _ = primals
        return late(*primals), jax.jvp(lambda a, w: product(a, w, start), (lhs, rhs), tangents[:2])[1]

    if not before:
        return product(lhs, rhs, start)
    found: Result = late(lhs, rhs, start, schedule_after(start, before))
    return found


def piece_size(lhs: Left, rhs: Right, dimension: int, p: int) -> int:
    """The size of a piece in the dimension that is scattered."""
    return (lhs.shape[-2] if dimension == 0 else rhs.shape[-1]) // p


def travel_dtype(sums: Sums, lhs: Left, rhs: Right) -> Any:
    """The dtype in which the sums of a product travel."""
    return accumulator(lhs, rhs) if sums == "accumulator" else jnp.result_type(lhs, rhs)


def _pad_rows(lhs: Left, multiple: int) -> Left:
    return jnp.pad(lhs, [*[(0, 0)] * (lhs.ndim - 2), (0, -lhs.shape[-2] % multiple), (0, 0)])


def join_parts(parts: Sequence[Block], dimension: int) -> Block:
    """The parts of a piece, one behind the other in a dimension."""
    sizes, shape = [part.shape[dimension] for part in parts], list(parts[0].shape)
    shape[dimension] = sum(sizes)
    return assemble(zip(parts, itertools.accumulate(sizes, initial=0), strict=False), dimension, shape)


def _gather_halves(halves: Sequence[Block], into: Block, start: int, axis_name: AxisName) -> Block:
    """Writes all participants' rows into an array from `start` on: half goes rightward, the other half leftward."""
    p, me, dimension = lax.axis_size(axis_name), axis_index(axis_name), into.ndim - 2
    size = halves[0].shape[dimension]
    rows = size + halves[1].shape[dimension]

    def write_halves(into: Block, right: Block, left: Block, distance: Array | int) -> Block:
        into = write(into, right, start + around(me - distance, p) * rows, dimension)
        return write(into, left, start + around(me + distance, p) * rows + size, dimension)

    return pass_round(halves, write_halves(into, halves[0], halves[1], 0), write_halves, axis_name)
