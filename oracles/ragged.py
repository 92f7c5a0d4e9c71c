"""The collective `ragged_all_to_all`.

Each device holds `operand` `[N, …]`, `output` `[M, …]` and four lists of k * p integers, k for each of the p
participants of its process group. Entries `[j * k, (j + 1) * k)` belong to participant j: for slices that a device
*sends* to j, `input_offsets` has their starts in its own operand, `send_sizes` their numbers of rows, and
`output_offsets` their starts in *j's* output; for slices that it *receives* from j, `recv_sizes` has their numbers of
rows.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from shardproof.oracles.collectives import Axes, Blocks, Operands, Tangents
from shardproof.oracles.dtypes import widen
from shardproof.oracles.mesh import MeshCase, as_axes


class Slice(NamedTuple):
    """Rows that travel: devices by their position in the mesh (row-major), row numbers and counts."""

    source: int
    destination: int
    start: int
    size: int
    target: int


def process_groups(mesh: MeshCase, axes: Axes) -> np.ndarray:
    """The devices of every process group, by position in the mesh (row-major): `[group, participant]`."""
    names = as_axes(axes)
    order = [mesh.axis_names.index(name) for name in names]
    rest = [i for i in range(len(mesh.sizes)) if i not in order]
    return np.arange(mesh.size).reshape(mesh.sizes).transpose(*rest, *order).reshape(-1, mesh.axis_size(names))


def slices(operands: Operands, mesh: MeshCase, axes: Axes) -> Iterator[Slice]:
    """All slices that are sent and not empty, of lists that contradict each other nowhere (the interpreter checks it).

    Raises:
        ValueError: for rows of two shapes, or lists other than of integers, as many for each participant.
    """
    operand, output, *lists = operands
    rows = [x.shape[len(mesh.sizes) + 1 :] for x in (operand, output)]
    entries, p = {x.shape[len(mesh.sizes) :] for x in lists}, mesh.axis_size(axes)
    if rows[0] != rows[1] or any(x.dtype.kind not in "iu" for x in lists) or len(entries) > 1 or max(entries)[0] % p:
        given = f"rows {rows}, lists {[f'{x.dtype}{list(x.shape[len(mesh.sizes) :])}' for x in lists]}"
        raise ValueError(f"{given}: expected rows of one shape, and integers, as many for each of {p} participants")
    begin, sent, target = (x.reshape(mesh.size, -1).tolist() for x in lists[:3])
    for participants in process_groups(mesh, axes).tolist():
        each = len(sent[0]) // p
        for source, (j, destination), k in itertools.product(participants, enumerate(participants), range(each)):
            entry = j * each + k
            if sent[source][entry]:
                yield Slice(source, destination, begin[source][entry], sent[source][entry], target[source][entry])


def ragged_all_to_all(operands: Operands, mesh: MeshCase, axes: Axes) -> Blocks:
    """Every slice is written where its sender says in its receiver's output; other rows are those of `output`."""
    rank = len(mesh.sizes)
    operand, output = widen(operands[:2])
    source = operand.reshape(mesh.size, *operand.shape[rank:])
    result = output.reshape(mesh.size, *output.shape[rank:]).copy()
    for s in slices(operands, mesh, axes):
        result[s.destination, s.target : s.target + s.size] = source[s.source, s.start : s.start + s.size]
    return result.reshape(output.shape)


class RaggedAllToAll:
    """The exchange with its derivatives with respect to operand and output; the lists have none.

    Operands are operand, output, input_offsets, send_sizes, output_offsets and recv_sizes.
    """

    def value(self, operands: Operands, mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """The results' blocks."""
        return [ragged_all_to_all(operands, mesh, axes)]

    def pushforward(self, operands: Operands, tangents: Tangents, mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """Rows only move, so tangents move as they do."""
        return self.value([*tangents[:2], *operands[2:]], mesh, axes)

    def pullback(self, operands: Operands, cotangents: Tangents, mesh: MeshCase, axes: Axes) -> list[Blocks | None]:
        """A sent row gets the cotangents of all places that it was sent to; one of output, unless written, its own."""
        (operand, output, *_), (ct,) = operands, widen(cotangents)
        rank = len(mesh.sizes)
        kept = ct.reshape(mesh.size, *ct.shape[rank:]).copy()
        returned = np.zeros((mesh.size, *operand.shape[rank:]), kept.dtype)
        for s in slices(operands, mesh, axes):
            written = kept[s.destination, s.target : s.target + s.size]
            returned[s.source, s.start : s.start + s.size] += written
            written[...] = 0
        return [returned.reshape(operand.shape), kept.reshape(output.shape), None, None, None, None]


differentiable = RaggedAllToAll()
