"""Rings that reduce a product piece by piece: sums travel, and every member adds its product to those that pass by.

A sum starts where it has the longest way to go, and each member computes its term while the sum is on
its way to it. Sums travel in the accumulator's dtype: float32 for 16-bit operands, twice the bytes, and no
rounding from hop to hop. The gradient is a ring that gathers the cotangent, piece by piece.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from shardproof.impl.algorithms.pieces import WAYS, shift
from shardproof.impl.collective_matmul.operands import UNROLLED, Axes, Left, Result, Right, aligned, multiply
from shardproof.impl.collectives import Block, axis_index

Ranges = Sequence[tuple[Array, int]]
"""Where ranges of rows (or columns) of the product start, and how many they are."""

Target = Callable[[Array], Array]
"""The logical index of the member so far in the direction opposite to travel (negative: along it)."""


@dataclass(frozen=True)
class Reducing:
    """A product of which every member is to have its piece of the sum.

    Arguments:
        rows: the size of a piece in the dimension that is scattered.
        dimension: that dimension, of a piece.
        product: the ranges of this member's own product, computed as one.
    """

    rows: int
    dimension: int
    product: Callable[[Ranges], list[Block]]

    def halves(self) -> list[int]:
        """The sizes of the two halves of a piece, the first one row longer if the rows are odd; of one row, one."""
        return [self.rows] if self.rows < 2 else [self.rows - self.rows // 2, self.rows // 2]


def scattered(lhs: Left, rhs: Right, axes: Axes, scatter_dimension: int) -> Reducing:
    """`A[…, M, K_Y] W[K_Y, N]`, whose rows (dimension 0) or columns (dimension 1) are scattered."""
    lhs, rhs = aligned(lhs, rhs, axes)
    dimension = lhs.ndim - 2 + scatter_dimension
    cut, along = (lhs, lhs.ndim - 2) if scatter_dimension == 0 else (rhs, 1)

    def product(ranges: Ranges) -> list[Block]:
        slices = [lax.dynamic_slice_in_dim(cut, start, size, along) for start, size in ranges]
        taken = slices[0] if len(slices) == 1 else jnp.concatenate(slices, along)
        whole = multiply(taken, rhs) if scatter_dimension == 0 else multiply(lhs, taken)
        return jnp.split(whole, [ranges[0][1]], axis=dimension) if len(ranges) == 2 else [whole]

    return Reducing(cut.shape[along] // lax.axis_size(axes), dimension, product)


def ring(reducing: Reducing, axes: Axes) -> Result:
    """Every piece's sum goes round the ring once, from the neighbour of the member that it is for."""
    return _rings(reducing, axes, [reducing.rows], _round(axes))


def bidirectional(reducing: Reducing, axes: Axes, *, at_once: bool = False) -> Result:
    """Half of every sum goes each way; a step computes two halves' terms one by one, or `at_once` as one product."""
    return _rings(reducing, axes, reducing.halves(), _round(axes), at_once)


def joined(reducing: Reducing, axes: Axes) -> Result:
    """`bidirectional`, with one product of full size in every step."""
    return bidirectional(reducing, axes, at_once=True)


def shorter_way(reducing: Reducing, axes: Axes) -> Result:
    """Two whole sums for every member meet at it, each of the terms of those on one side of it."""
    p, target = lax.axis_size(axes), _round(axes)

    def term(away: Array) -> Block:
        return reducing.product([(target(away) * reducing.rows, reducing.rows)])[0]

    def passed_on(sums: list[Block]) -> list[Block]:
        return [shift(s, axes, way) for s, way in zip(sums, WAYS, strict=True)]

    def terms(away: Array) -> list[Block]:
        return [term(-way * away) for way in WAYS]

    def step(sums: list[Block], away: Array) -> tuple[list[Block], None]:
        return [s + t for s, t in zip(passed_on(sums), terms(away), strict=True)], None

    own, farthest = term(jnp.asarray(0)), jnp.asarray((p - 1) // 2)
    opposite = shift(term(jnp.asarray(-(p // 2))), axes, 1) if p % 2 == 0 else None
    if p < 3:
        return own if opposite is None else opposite + own
    rightward, leftward = terms(farthest)
    start = [rightward if opposite is None else opposite + rightward, leftward]
    sums = passed_on(lax.scan(step, start, jnp.arange((p - 1) // 2 - 1, 0, -1), unroll=p <= UNROLLED)[0])
    return sums[0] + sums[1] + own


def nested(reducing: Reducing, axes: Axes) -> Result:
    """A ring over the first axis, each of whose terms is reduced along a ring over the second."""
    outer, inner = (axes[0],), (axes[1],)
    a, b = lax.axis_size(outer), lax.axis_size(inner)

    def term(away: Array) -> Block:
        first = (axis_index(outer) - away) % a * b
        return _rings(reducing, inner, [reducing.rows], lambda far: first + (axis_index(inner) - far) % b)

    def step(total: Block, away: Array) -> tuple[Block, None]:
        return shift(total, outer, 1) + term(away), None

    return lax.scan(step, term(jnp.asarray(1)), jnp.arange(2, a + 1), unroll=a <= UNROLLED)[0]


def _round(axes: Axes) -> Target:
    p, index = lax.axis_size(axes), axis_index(axes)
    return lambda away: (index - away) % p


def _rings(reducing: Reducing, axes: Axes, sizes: list[int], target: Target, at_once: bool = False) -> Result:
    """Parts of all sums, of so many rows each, along a ring each: the first rightward, the second leftward."""
    starts = [0, sizes[0]]

    def terms(away: Array) -> list[Block]:
        ranges = [
            (target(way * away) * reducing.rows + start, size)
            for way, start, size in zip(WAYS, starts, sizes, strict=False)
        ]
        return reducing.product(ranges) if at_once else [reducing.product([one])[0] for one in ranges]

    def step(totals: list[Block], away: Array) -> tuple[list[Block], None]:
        arrived = [shift(total, axes, way) for total, way in zip(totals, WAYS, strict=False)]
        return [total + term for total, term in zip(arrived, terms(away), strict=True)], None

    p = lax.axis_size(axes)
    totals, _ = lax.scan(step, terms(jnp.asarray(1)), jnp.arange(2, p + 1), unroll=p <= UNROLLED)
    return totals[0] if len(totals) == 1 else jnp.concatenate(totals, reducing.dimension)
