"""Rings that reduce a product piece by piece: sums travel, and every participant adds its product to each that passes.

A sum starts where it has the longest way to go, and each participant computes its term while the sum is on
its way to it. Sums travel in the accumulator's dtype: float32 for 16-bit operands, twice the bytes, and no
rounding from hop to hop; or, if that is asked for, in the operands' dtype, rounded at every hop. The gradient is a
ring that gathers the cotangent, piece by piece.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from shardproof.impl.algorithms.pieces import WAYS, shift
from shardproof.impl.arguments import refuse
from shardproof.impl.collective_matmul.operands import (
    UNROLLED,
    Axes,
    Left,
    Result,
    Right,
    accumulator,
    aligned,
    counted,
    multiply,
    places_back,
    unwritten,
    waiting,
)
from shardproof.impl.collectives import Block, axis_index

Sums = Literal["accumulator", "operands"]
"""In which dtype sums travel."""


def check_sums(function: str, sums: str) -> None:
    """One of the dtypes in which sums can travel.

    Raises:
        ValueError: if not.
    """
    if sums not in get_args(Sums):
        refuse(function, "sums", sums, " or ".join(map(repr, get_args(Sums))))


Target = Callable[[Array], Array]
"""The logical index of the participant so far in the direction opposite to travel (negative: along it)."""


@dataclass(frozen=True)
class Reducing:
    """A product of which every participant is to have its piece of the sum.

    Arguments:
        rows: the size of a piece in the dimension that is scattered.
        dimension: that dimension, of a piece.
        product: so many rows (or columns) of this participant's own product, from one on.
        later: the same, computed when other blocks are there.
        shape: of a piece.
        dtype: of the result.
        sums: the dtype in which sums travel; the result's, or that in which products are added up.
    """

    rows: int
    dimension: int
    product: Callable[[Array, int], Block]
    later: Callable[[Array, int, Sequence[Block]], Block]
    shape: tuple[int, ...]
    dtype: Any
    sums: Any

    def of_rows(self, first: int, behind: Sequence[Block]) -> "Reducing":
        """The same, its rows counted from one on, and begun when other blocks are there."""

        def product(start: Array, size: int) -> Block:
            return self.later(first + start, size, behind) if behind else self.product(first + start, size)

        def later(start: Array, size: int, before: Sequence[Block]) -> Block:
            return self.later(first + start, size, before)

        return replace(self, product=product, later=later)

    def halves(self) -> list[int]:
        """The sizes of the two halves of a piece, the first one row longer if the rows are odd; of one row, one."""
        return self.parts(2)

    def parts(self, most: int) -> list[int]:
        """The sizes of as many parts of a piece, none of them empty unless it is; the first ones have a row more."""
        count = max(1, min(most, self.rows))
        return [self.rows // count + (i < self.rows % count) for i in range(count)]


def scattered(
    lhs: Left, rhs: Right, axes: Axes, scatter_dimension: int, sums: Sums = "accumulator", parts: int = 1
) -> Reducing:
    """`A[…, M, K_Y] W[K_Y, N]`, whose rows (dimension 0) or columns (dimension 1) are scattered, in so many parts."""
    lhs, rhs = aligned(lhs, rhs, axes)
    dimension = lhs.ndim - 2 + scatter_dimension

    def one(lhs: Left, rhs: Right, start: Array, size: int) -> Block:
        if scatter_dimension == 0:
            return multiply(lax.dynamic_slice_in_dim(lhs, start, size, lhs.ndim - 2), rhs)
        return multiply(lhs, lax.dynamic_slice_in_dim(rhs, start, size, 1))

    def later(start: Array, size: int, before: Sequence[Block]) -> Block:
        return _late(lambda lhs, rhs, at: one(lhs, rhs, at, size))(lhs, rhs, start, waiting(start, before))

    def product(start: Array, size: int) -> Block:
        return one(lhs, rhs, start, size)

    shape = [*lhs.shape[:-1], rhs.shape[1]]
    shape[dimension] //= lax.axis_size(axes) * parts
    dtype = jnp.result_type(lhs, rhs)
    travel = accumulator(lhs, rhs) if sums == "accumulator" else dtype
    return Reducing(shape[dimension], dimension, product, later, tuple(shape), dtype, travel)


def ring(reducing: Reducing, axes: Axes) -> Result:
    """Every piece's sum goes round the ring once, from the neighbour of the participant that it is for."""
    return _rings(reducing, axes, [reducing.rows], places_back(axes))


def bidirectional(reducing: Reducing, axes: Axes) -> Result:
    """Half of every sum goes each way; a step computes two halves' terms one by one."""
    return _rings(reducing, axes, reducing.halves(), places_back(axes))


def alternating(reducing: Reducing, axes: Axes) -> Result:
    """The two halves that `in_halves` gives, as one piece."""
    return _joined(in_halves(reducing, axes), reducing)


def in_halves(reducing: Reducing, axes: Axes, beside: Sequence[Block] = ()) -> list[Block]:
    """`bidirectional`, in turns: while one half's sum travels, the other half's term is computed and added to its sum.

    Each term waits for the sum that it is added to, so that a compiler makes one kernel of product, addition and
    rounding, and for the term before it, so that it is computed beside the transfer that it is to hide. What waits is
    the row at which a term begins. Each half travels beside the other half's term alone: where the links are the limit,
    a third is exposed. A piece of one row cannot take turns: it goes round as in `ring`, and there is no second half.

    Before the last two terms other blocks are there, which come beside the terms before: `beside`.
    """
    p, target, sizes = lax.axis_size(axes), places_back(axes), reducing.halves()
    if len(sizes) == 1:
        return [ring(reducing, axes).astype(reducing.dtype)]

    def start(half: int, away: Array) -> Array:
        return target(WAYS[half] * away) * reducing.rows + half * sizes[0]

    def total(half: int, away: Array, arrived: Block, before: Sequence[Block]) -> Block:
        own = reducing.later(start(half, away), sizes[half], (arrived, *before))
        return arrived.astype(own.dtype) + own

    def sent(half: int, one: Block) -> Block:
        return shift(one.astype(reducing.sums), axes, WAYS[half])

    def turn(carry: tuple[Block, Block], away: Array) -> tuple[Block, Block, Block]:
        first, arrived = carry  # the first half's sum is complete, the second half's has come
        second = total(1, away, arrived, [first]).astype(reducing.sums)
        return sent(0, first), second, sent(1, second)

    def step(carry: tuple[Block, Block], away: Array) -> tuple[tuple[Block, Block], None]:
        passed, second, arrived = turn(carry, away)
        return (total(0, away + 1, passed, [second]).astype(reducing.sums), arrived), None

    one, last = jnp.asarray(1), jnp.asarray(p)
    first = reducing.product(start(0, one), sizes[0]).astype(reducing.sums)
    second = reducing.later(start(1, one), sizes[1], (first,)).astype(reducing.sums)
    if p == 1:
        return [first.astype(reducing.dtype), second.astype(reducing.dtype)]
    passed, arrived = sent(0, first), sent(1, second)
    if p > 2:
        first = total(0, one + 1, passed, [second]).astype(reducing.sums)
        carry = lax.scan(step, (first, arrived), counted(2, p - 1), unroll=p <= UNROLLED)[0]
        passed, second, arrived = turn(carry, last - 1)
    done = total(0, last, passed, [second, *beside]).astype(reducing.dtype)
    return [done, total(1, last, arrived, [done]).astype(reducing.dtype)]


def shorter_way(reducing: Reducing, axes: Axes) -> Result:
    """Two whole sums for every participant meet at it, each of the terms of those on one side of it."""
    p, target = lax.axis_size(axes), places_back(axes)

    def term(away: Array) -> Block:
        return reducing.product(target(away) * reducing.rows, reducing.rows)

    def passed_on(sums: list[Block]) -> list[Block]:
        return [shift(s, axes, way) for s, way in zip(sums, WAYS, strict=True)]

    def terms(away: Array) -> list[Block]:
        return [term(-way * away) for way in WAYS]

    def step(sums: list[Block], away: Array) -> tuple[list[Block], None]:
        return [added(s, t) for s, t in zip(passed_on(sums), terms(away), strict=True)], None

    def added(arrived: Block, term: Block) -> Block:
        return (arrived.astype(term.dtype) + term).astype(reducing.sums)

    own, farthest = term(jnp.asarray(0)), jnp.asarray((p - 1) // 2)
    opposite = shift(term(jnp.asarray(-(p // 2))).astype(reducing.sums), axes, 1) if p % 2 == 0 else None
    if p < 3:
        return own if opposite is None else opposite.astype(own.dtype) + own
    rightward, leftward = terms(farthest)
    start = [rightward if opposite is None else opposite.astype(own.dtype) + rightward, leftward]
    start = [s.astype(reducing.sums) for s in start]
    sums = passed_on(lax.scan(step, start, counted((p - 1) // 2 - 1, 0, -1), unroll=p <= UNROLLED)[0])
    return sums[0].astype(own.dtype) + sums[1].astype(own.dtype) + own


def nested(reducing: Reducing, axes: Axes) -> Result:
    """A ring over the first axis, each of whose terms is reduced along a ring over the second."""
    outer, inner = (axes[0],), (axes[1],)
    a, b = lax.axis_size(outer), lax.axis_size(inner)

    def term(away: Array) -> Block:
        first = (axis_index(outer) - away) % a * b
        return _rings(reducing, inner, [reducing.rows], lambda far: first + (axis_index(inner) - far) % b)

    def step(total: Block, away: Array) -> tuple[Block, None]:
        arrived, own = shift(total, outer, 1), term(away)
        return (arrived.astype(own.dtype) + own).astype(reducing.sums), None

    return lax.scan(step, term(jnp.asarray(1)).astype(reducing.sums), counted(2, a + 1), unroll=a <= UNROLLED)[0]


def _joined(halves: Sequence[Block], reducing: Reducing) -> Result:
    if len(halves) == 1:
        return halves[0]
    whole = unwritten(reducing.shape, halves[0])
    for half, start in zip(halves, (0, halves[0].shape[reducing.dimension]), strict=True):
        whole = lax.dynamic_update_slice_in_dim(whole, half, start, reducing.dimension)
    return whole


def _late(product: Callable[[Left, Right, Array], Block]) -> "jax.custom_jvp[Block]":
    """`product(lhs, rhs, start)`, of a start that waits; its derivatives, which need not wait, are those at `start`."""

    @jax.custom_jvp
    def late(lhs: Left, rhs: Right, start: Array, later: Array) -> Block:
        return product(lhs, rhs, later)

    @late.defjvp
    def _(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Block, Block]:
        lhs, rhs, start, later = primals
        return late(lhs, rhs, start, later), jax.jvp(lambda a, w: product(a, w, start), (lhs, rhs), tangents[:2])[1]

    return late


def _rings(reducing: Reducing, axes: Axes, sizes: list[int], target: Target) -> Result:
    """Parts of all sums, of so many rows each, along a ring each: the first rightward, the second leftward."""
    starts = [0, sizes[0]]

    def terms(away: Array) -> list[Block]:
        return [
            reducing.product(target(way * away) * reducing.rows + start, size)
            for way, start, size in zip(WAYS, starts, sizes, strict=False)
        ]

    def step(totals: list[Block], away: Array) -> tuple[list[Block], None]:
        arrived = [shift(total, axes, way) for total, way in zip(totals, WAYS, strict=False)]
        return [(a.astype(t.dtype) + t).astype(reducing.sums) for a, t in zip(arrived, terms(away), strict=True)], None

    p, first = lax.axis_size(axes), [term.astype(reducing.sums) for term in terms(jnp.asarray(1))]
    totals, _ = lax.scan(step, first, counted(2, p + 1), unroll=p <= UNROLLED)
    return totals[0] if len(totals) == 1 else jnp.concatenate(totals, reducing.dimension)
