"""What is easily mistaken in a ragged exchange: which rows a slice has, where they are, and where they go."""

from collections.abc import Callable, Sequence

import numpy as np

from shardproof.oracles import ragged
from shardproof.oracles.collectives import Axes, Blocks
from shardproof.oracles.dtypes import wide
from shardproof.oracles.mesh import MeshCase


class Unchecked(ragged.RaggedAllToAll):
    """An exchange of slices other than the lists say, which need not agree: as the receiver gathers them.

    A slice has as many rows as its receiver was told. Behind the rows of an operand are those of the next participant;
    rows beyond an output are left out, and where slices overlap a row is of the one that begins last.

    Arguments:
        taken: slices, given all that there are, how many each participant sends to each, and the rows of an operand.
        axes: the axis tuple by which entries of the lists are counted.
    """

    def __init__(
        self,
        taken: Callable[[list[ragged.Slice], int, int], list[ragged.Slice]] = lambda slices, each, rows: slices,
        axes: Callable[[MeshCase, Axes], Axes] = lambda mesh, axes: axes,
    ) -> None:
        self.taken, self.axes = taken, axes

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """What is where a sender says, of each of its slices."""
        operand, output, *lists = operands
        rank, over = len(mesh.sizes), self.axes(mesh, axes)
        rows = operand.astype(wide(operand.dtype)).reshape(mesh.size, *operand.shape[rank:])
        result = output.astype(wide(output.dtype)).reshape(mesh.size, *output.shape[rank:])
        wholes = {
            int(device): (rows[group].reshape(-1, *rows.shape[2:]), place * rows.shape[1])
            for group in ragged.process_groups(mesh, over)
            for place, device in enumerate(group)
        }
        found = [*ragged.slices(*lists, mesh=mesh, axes=over)]
        taken = self.taken(found, lists[0].shape[-1] // mesh.axis_size(axes), rows.shape[1])
        begun: dict[tuple[int, int], ragged.Slice] = {}
        for s in sorted(filter(lambda s: s.announced, taken), key=lambda s: s.target):
            for row in range(s.target, result.shape[1]):
                begun[s.destination, row] = s
        for (destination, row), s in begun.items():
            whole, first = wholes[s.source]
            if 0 <= row < s.target + s.announced:
                at = np.clip(first + s.start + row - s.target, 0, len(whole) - 1)
                result[destination, row] = whole[at]
        return [result.reshape(output.shape)]


def _packed(slices: list[ragged.Slice], each: int, rows: int) -> list[ragged.Slice]:
    """Slices that lie one behind the other in the operand, as far as they can."""
    ends: dict[int, int] = {}
    found = []
    for s in slices:
        start = ends.get(s.source, 0)
        ends[s.source] = start + s.size
        found.append(s._replace(start=min(start, max(rows - s.size, 0))))
    return found


def _packed_there(slices: list[ragged.Slice], each: int, rows: int) -> list[ragged.Slice]:
    """Slices that are put one behind the other into the output."""
    ends: dict[int, int] = {}
    found = []
    for s in slices:
        target = ends.get(s.destination, 0)
        ends[s.destination] = target + s.size
        found.append(s._replace(target=target))
    return found


def _own_offsets(slices: list[ragged.Slice], each: int, rows: int) -> list[ragged.Slice]:
    """Slices that go where their receiver's own list says, at the entry of their sender."""
    theirs: dict[tuple[int, int], list[int]] = {}
    for s in slices:
        theirs.setdefault((s.source, s.destination), []).append(s.target)
    left = {pair: iter(targets) for pair, targets in theirs.items()}
    return [s._replace(target=next(left[s.destination, s.source])) for s in slices]


def _short(slices: list[ragged.Slice], each: int, rows: int) -> list[ragged.Slice]:
    return [s._replace(announced=s.announced - 1) for s in slices]


def _first(slices: list[ragged.Slice], each: int, rows: int) -> list[ragged.Slice]:
    return slices[::each]


class OutputCounts(ragged.RaggedAllToAll):
    """Has the right values, and a derivative by rows of the output that were overwritten."""

    def pushforward(
        self, operands: Sequence[Blocks], tangents: Sequence[Blocks | None], mesh: MeshCase, axes: Axes
    ) -> list[Blocks]:
        """The tangents that were sent, and all of those of the output."""
        of_operand, of_output = (np.asarray(tangent) for tangent in tangents[:2])
        (sent,) = super().pushforward(operands, [of_operand, np.zeros_like(of_output)], mesh, axes)
        return [sent + of_output]

    def pullback(
        self, operands: Sequence[Blocks], cotangents: Sequence[Blocks], mesh: MeshCase, axes: Axes
    ) -> list[Blocks | None]:
        """Of the output all of the cotangent."""
        of_operand, _, *rest = super().pullback(operands, cotangents, mesh, axes)
        return [of_operand, cotangents[0].astype(wide(cotangents[0].dtype)), *rest]


MISTAKES = {
    "slices lie one behind the other in the operand, whatever input_offsets says": Unchecked(_packed),
    "slices are put one behind the other into the output, whatever output_offsets says": Unchecked(_packed_there),
    "entries of the lists are counted in the order of the mesh": Unchecked(
        axes=lambda mesh, axes: mesh.in_mesh_order(axes)
    ),
    "the first slice for each participant is sent, and no other": Unchecked(_first),
    "slices go where output_offsets of their receiver says, and not that of their sender": Unchecked(_own_offsets),
    "every slice is a row shorter": Unchecked(_short),
    "rows of the output that are overwritten have a derivative as well": OutputCounts(),
}
