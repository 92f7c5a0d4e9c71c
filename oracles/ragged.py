"""The collective `ragged_all_to_all`.

Each device holds `operand` `[N, …]`, `output` `[M, …]` and four lists of k * p integers, k for each of the p
participants of its process group. Entries `[j * k, (j + 1) * k)` belong to participant j: for slices that a device
*sends* to j, `input_offsets` has their starts in its own operand, `send_sizes` their numbers of rows, and
`output_offsets` their starts in *j's* output; for slices that it *receives* from j, `recv_sizes` has their numbers of
rows.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from shardproof.oracles.whole import Arrays, OfParticipants


class Slice(NamedTuple):
    """Rows that travel: participants with their process group, row numbers and counts."""

    source: tuple[int, int]
    destination: tuple[int, int]
    start: int
    size: int
    target: int


def slices(operand: np.ndarray, output: np.ndarray, lists: Sequence[np.ndarray]) -> Iterator[Slice]:
    """All slices that are sent and not empty, of lists that contradict each other nowhere (the interpreter checks it).

    Raises:
        ValueError: for rows of two shapes, or lists other than of integers, as many for each participant.
    """
    rows, entries, (p, groups) = (
        [x.shape[3:] for x in (operand, output)],
        {x.shape[2:] for x in lists},
        operand.shape[:2],
    )
    if rows[0] != rows[1] or any(x.dtype.kind not in "iu" for x in lists) or len(entries) > 1 or max(entries)[0] % p:
        given = f"rows {rows}, lists {[f'{x.dtype}{list(x.shape[2:])}' for x in lists]}"
        raise ValueError(f"{given}: expected rows of one shape, and integers, as many for each of {p} participants")
    begin, sent, target = (x.tolist() for x in lists[:3])
    each = max(entries)[0] // p
    for group, source, destination, k in itertools.product(range(groups), range(p), range(p), range(each)):
        at = destination * each + k
        if size := sent[source][group][at]:
            here, there = (source, group), (destination, group)
            yield Slice(here, there, begin[source][group][at], size, target[source][group][at])


class RaggedAllToAll(OfParticipants):
    """The exchange with its derivatives with respect to operand and output; the lists have none.

    Operands are operand, output, input_offsets, send_sizes, output_offsets and recv_sizes.
    """

    sharded = (None,) * 6

    def result(self, operand: np.ndarray, output: np.ndarray, *lists: np.ndarray) -> np.ndarray:
        """Every slice is written where its sender says in its receiver's output; other rows are those of `output`."""
        result = output.copy()
        for s in slices(operand, output, lists):
            result[s.destination][s.target : s.target + s.size] = operand[s.source][s.start : s.start + s.size]
        return result

    def tangent(self, wholes: Arrays, tangents: Arrays) -> np.ndarray:
        """Rows only move, so tangents move as they do."""
        return self.result(*tangents[:2], *wholes[2:])

    def cotangents(self, wholes: Arrays, cotangent: np.ndarray) -> list[np.ndarray | None]:
        """A sent row gets the cotangents of all places that it was sent to; one of output, unless written, its own."""
        operand, output, *lists = wholes
        kept, returned = cotangent.copy(), np.zeros_like(operand, dtype=cotangent.dtype)
        for s in slices(operand, output, lists):
            written = kept[s.destination][s.target : s.target + s.size]
            returned[s.source][s.start : s.start + s.size] += written
            written[...] = 0
        return [returned, kept, *[None] * len(lists)]


differentiable = RaggedAllToAll()
