"""Blocks of all participants, and sums over them, that come the shorter way round a ring."""

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax
from jaxtyping import Array

from shardproof.impl.algorithms.pieces import shift
from shardproof.impl.collective_matmul.operands import Axes, places_back, unwritten, waiting
from shardproof.impl.collectives import Block, axis_index

Arrived = Sequence[tuple[Block, Array]]
"""Blocks, and where each starts in the whole."""


def arriving(block: Block, size: int, axes: Axes, *, passed_on: bool = False) -> list[tuple[Block, Array]]:
    """All participants' blocks, and where each starts in the whole, this one's first and the farthest one's last.

    The one opposite is passed on by a neighbour; but of four participants it is sent by its owner, over the same two
    links, and so it can begin before anything has arrived.

    Arguments:
        block: this participant's.
        size: the rows, or columns, of a block.
        axes: of the ring.
        passed_on: by a neighbour even of four: where sums share the links, of which it takes two otherwise.
    """
    p, back = lax.axis_size(axes), places_back(axes)
    rightward = leftward = block
    found = [(block, axis_index(axes) * size)]
    opposite = shift(block, axes, 2) if p == 4 and not passed_on else None
    for away in range(1, (p - 1) // 2 + 1):
        rightward, leftward = shift(rightward, axes, 1), shift(leftward, axes, -1)
        found += [(rightward, back(away) * size), (leftward, back(-away) * size)]
    if p % 2 == 0:
        opposite = shift(rightward, axes, 1) if opposite is None else opposite
        found.append((opposite, back(p // 2) * size))
    return found


def summing(
    term: Callable[[Array], Block], size: int, dtype: Any, axes: Axes, behind: Sequence[Block] = ()
) -> list[Block]:
    """The sums of all other participants' terms that are this one's: one from each side, or one alone.

    Arguments:
        term: what this participant adds to the sum of the one whose block starts there.
        size: the rows, or columns, of a block.
        dtype: in which sums travel.
        axes: of the ring.
        behind: what has the links before the first of them, the one from the participant opposite or one each way.
    """
    p, back = lax.axis_size(axes), places_back(axes)
    before: list[Block] = []

    def sent(away: int, arrived: Sequence[Block], way: int) -> list[Block]:
        own = term(waiting(back(-away) * size, [*before, *arrived]))
        before[:] = [total(own, arrived).astype(dtype)]
        return [shift(waiting(before[0], behind) if abs(away) == p // 2 else before[0], axes, way)]

    rightward: list[Block] = []
    leftward = sent(p // 2, [], -1) if p % 2 == 0 else []
    for away in range((p - 1) // 2, 0, -1):
        rightward = sent(away, rightward, 1)
        leftward = sent(-away, leftward, -1)
    return [*rightward, *leftward]


def total(own: Block, arrived: Sequence[Block]) -> Block:
    """A participant's own term and the sums that arrived."""
    for one in arrived:
        own = own + one.astype(own.dtype)
    return own


def assembled(
    parts: Arrived,
    dimension: int,
    shape: Sequence[int],
    product: Callable[[Block], Block] | None = None,
) -> Block:
    """An array of a shape, of parts that start at rows of a dimension; or of their products, one after the other."""
    whole: list[Block] = []
    for part, at in parts:
        one = part if product is None else product(part)
        start = waiting(at, whole) if product is not None else at
        into = whole[0] if whole else unwritten(tuple(shape), one)
        whole = [lax.dynamic_update_slice_in_dim(into, one, start, dimension)]
    return whole[0]
