"""Blocks of all participants, and sums over them, that come the shorter way round a ring."""

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax
from jaxtyping import Array

from shardproof.impl.algorithms.pieces import shift
from shardproof.impl.arguments import AxisName
from shardproof.impl.collective_matmul.operands import empty_array, waiting, write
from shardproof.impl.collectives import Block, axis_index
from shardproof.impl.indices import around

Arrived = Sequence[tuple[Block, Array]]
"""Blocks, and where each starts in the whole."""


def arriving(block: Block, size: int, axis_name: AxisName, *, passed_on: bool = False) -> list[tuple[Block, Array]]:
    """All participants' blocks, and where each starts in the whole, this one's first and the farthest one's last.

    The one opposite is passed on by a neighbour; but of four participants it is sent by its owner, over the same two
    links, and so it can begin before anything has arrived.

    Arguments:
        block: this participant's.
        size: the rows, or columns, of a block.
        axis_name: of the ring.
        passed_on: by a neighbour even of four: where sums share the links, of which it takes two otherwise.
    """
    p, me = lax.axis_size(axis_name), axis_index(axis_name)
    rightward = leftward = block
    found = [(block, me * size)]
    opposite = shift(block, axis_name, 2) if p == 4 and not passed_on else None
    for away in range(1, (p - 1) // 2 + 1):
        rightward, leftward = shift(rightward, axis_name, 1), shift(leftward, axis_name, -1)
        found += [(rightward, around(me - away, p) * size), (leftward, around(me + away, p) * size)]
    if p % 2 == 0:
        opposite = shift(rightward, axis_name, 1) if opposite is None else opposite
        found.append((opposite, around(me - p // 2, p) * size))
    return found


def summing(
    term: Callable[[Array], Block], size: int, dtype: Any, axis_name: AxisName, behind: Sequence[Block] = ()
) -> list[Block]:
    """The sums of all other participants' terms that are this one's: one from each side, or one alone.

    Arguments:
        term: what this participant adds to the sum of the one whose block starts there.
        size: the rows, or columns, of a block.
        dtype: in which sums travel.
        axis_name: of the ring.
        behind: what has the links before the first of them, the one from the participant opposite or one each way.
    """
    p, me = lax.axis_size(axis_name), axis_index(axis_name)
    before: list[Block] = []

    def sent(away: int, arrived: Sequence[Block], way: int) -> list[Block]:
        own = term(waiting(around(me + away, p) * size, [*before, *arrived]))
        before[:] = [total(own, arrived).astype(dtype)]
        return [shift(waiting(before[0], behind) if abs(away) == p // 2 else before[0], axis_name, way)]

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
    parts: Arrived, dimension: int, shape: Sequence[int], product: Callable[[Block], Block] | None = None
) -> Block:
    """An array of a shape, of parts that start at rows of a dimension; or of their products, one after the other."""
    whole: list[Block] = []
    for part, at in parts:
        one = part if product is None else product(part)
        start = waiting(at, whole) if product is not None else at
        whole = [write(whole[0] if whole else empty_array(shape, one), one, start, dimension)]
    return whole[0]
