"""What `ragged_all_to_all` means, and which of its arguments contradict each other.

Each device holds `operand` `[N, …]`, `output` `[M, …]` and four lists of k * p integers, k for each of
the p participants of its process group. Entries `[j * k, (j + 1) * k)` belong to participant j: of the slices
that a device *sends* to j, `input_offsets` says where they begin in its own operand, `send_sizes` how many
rows they have, and `output_offsets` where they begin in *j's* output; of the slices that it *receives*
from j, `recv_sizes` says how many rows they have.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, NoReturn

import numpy as np

from shardproof.oracles.collectives import Axes, Blocks, Groups
from shardproof.oracles.dtypes import wide
from shardproof.oracles.layout import device_name
from shardproof.oracles.mesh import MeshCase, as_axes


class RaggedMismatch(ValueError):
    """What the participants of a ragged exchange were told contradicts itself: hardware would corrupt memory."""


class Slice(NamedTuple):
    """Rows that travel: devices by their position in the mesh (row-major), row numbers and counts."""

    source: int
    destination: int
    start: int
    size: int
    target: int
    announced: int


def process_groups(mesh: MeshCase, axes: Axes, groups: Groups = None) -> np.ndarray:
    """The devices of every process group, by position in the mesh (row-major): `[group, participant]`."""
    names = as_axes(axes)
    order = [mesh.axis_names.index(name) for name in names]
    rest = [i for i in range(len(mesh.sizes)) if i not in order]
    position = np.arange(mesh.size).reshape(mesh.sizes).transpose(*rest, *order)
    participants = position.reshape(-1, mesh.axis_size(names))
    table = np.array([range(participants.shape[1])] if groups is None else groups)
    return participants[:, table].reshape(-1, table.shape[1])


def slices(
    input_offsets: Blocks,
    send_sizes: Blocks,
    output_offsets: Blocks,
    recv_sizes: Blocks,
    *,
    mesh: MeshCase,
    axes: Axes,
    groups: Groups = None,
) -> Iterator[Slice]:
    """Everything that is sent; `announced` is the size that the receiver was told."""
    lists = [x.reshape(mesh.size, -1) for x in (input_offsets, send_sizes, output_offsets, recv_sizes)]
    begin, sent, target, received = (x.tolist() for x in lists)
    for participants in process_groups(mesh, axes, groups).tolist():
        each, rest = divmod(len(sent[0]), len(participants))
        if rest:
            raise RaggedMismatch(
                f"ragged_all_to_all: send_sizes has {len(sent[0])} entries: "
                f"expected a multiple of {len(participants)}, "
                f"the participants over {as_axes(axes)} on the mesh {mesh}"
            )
        for i, source in enumerate(participants):
            for j, destination in enumerate(participants):
                for k in range(each):
                    out, back = j * each + k, i * each + k
                    yield Slice(
                        source, destination, begin[source][out], sent[source][out], target[source][out],
                        received[destination][back],
                    )  # fmt: skip


def check_metadata(
    operand: Blocks,
    output: Blocks,
    input_offsets: Blocks,
    send_sizes: Blocks,
    output_offsets: Blocks,
    recv_sizes: Blocks,
    *,
    mesh: MeshCase,
    axes: Axes,
    groups: Groups = None,
) -> None:
    """The lists of all participants agree, every slice lies inside its buffers, and no row is written twice.

    Rows of operand and output have one shape, and lists are of integers. An empty slice may begin anywhere.

    Raises:
        RaggedMismatch: naming the devices and the numbers that contradict each other.
    """
    rows_in, rows_out = operand.shape[len(mesh.sizes)], output.shape[len(mesh.sizes)]
    writer = np.full((mesh.size, rows_out), -1)
    lists = (input_offsets, send_sizes, output_offsets, recv_sizes)

    def name(device: int) -> str:
        return device_name(mesh, [int(i) for i in np.unravel_index(device, mesh.sizes)])

    def refuse(text: str) -> NoReturn:
        raise RaggedMismatch(f"ragged_all_to_all over {as_axes(axes)} on the mesh {mesh}: {text}")

    row, place = operand.shape[len(mesh.sizes) + 1 :], output.shape[len(mesh.sizes) + 1 :]
    if row != place:
        refuse(
            f"rows of the operand have shape {row}, those of the output {place}: expected the same (operand, output)"
        )
    if any(entries.dtype.kind not in "iu" for entries in lists):
        refuse(f"lists of {', '.join(str(entries.dtype) for entries in lists)}: expected integers")
    for s in slices(*lists, mesh=mesh, axes=axes, groups=groups):
        if s.size != s.announced:
            refuse(
                f"device {name(s.source)} sends {s.size} rows to device {name(s.destination)}, which expects "
                f"{s.announced} (send_sizes and recv_sizes)"
            )
        if s.size < 0:
            refuse(
                f"device {name(s.source)} sends {s.size} rows to device {name(s.destination)}: expected none or more"
            )
        if not s.size:
            continue
        if s.start < 0 or s.start + s.size > rows_in:
            refuse(
                f"device {name(s.source)} sends rows [{s.start}, {s.start + s.size}) to device {name(s.destination)}: "
                f"its operand has {rows_in} rows (input_offsets, send_sizes)"
            )
        if s.target < 0 or s.target + s.size > rows_out:
            refuse(
                f"device {name(s.source)} writes rows [{s.target}, {s.target + s.size}) of device "
                f"{name(s.destination)}, whose output has {rows_out} rows (output_offsets, send_sizes)"
            )
        rows = writer[s.destination, s.target : s.target + s.size]
        if (rows >= 0).any():
            first = int(np.argmax(rows >= 0))
            refuse(
                f"devices {name(int(rows[first]))} and {name(s.source)} both write row {s.target + first} of device "
                f"{name(s.destination)} (output_offsets, send_sizes)"
            )
        rows[:] = s.source


def ragged_all_to_all(
    operand: Blocks,
    output: Blocks,
    input_offsets: Blocks,
    send_sizes: Blocks,
    output_offsets: Blocks,
    recv_sizes: Blocks,
    *,
    mesh: MeshCase,
    axes: Axes,
    groups: Groups = None,
) -> Blocks:
    """Every slice lands where its sender says in its receiver's output; all other rows keep `output`.

    Raises:
        RaggedMismatch: if the lists contradict each other.
    """
    lists = (input_offsets, send_sizes, output_offsets, recv_sizes)
    check_metadata(operand, output, *lists, mesh=mesh, axes=axes, groups=groups)
    rank = len(mesh.sizes)
    source = operand.reshape(mesh.size, *operand.shape[rank:])
    result = output.reshape(mesh.size, *output.shape[rank:]).copy()
    for s in slices(*lists, mesh=mesh, axes=axes, groups=groups):
        if s.size:
            result[s.destination, s.target : s.target + s.size] = source[s.source, s.start : s.start + s.size]
    return result.reshape(output.shape)


class RaggedAllToAll:
    """The exchange with its derivatives with respect to operand and output; the lists have none.

    Operands are operand, output, input_offsets, send_sizes, output_offsets and recv_sizes. Derivatives are exact, in
    `oracles.dtypes.wide`, and their transpose is taken over all blocks of all devices: each has its own cotangent
    (see `oracles.transposes`). Everything raises RaggedMismatch if the lists contradict each other.
    """

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """Every slice lands where its sender says; all other rows keep the output."""
        operand, output, *lists = operands
        rows = (x.astype(wide(x.dtype)) for x in (operand, output))
        return [ragged_all_to_all(*rows, *lists, mesh=mesh, axes=axes)]

    def pushforward(
        self, operands: Sequence[Blocks], tangents: Sequence[Blocks | None], mesh: MeshCase, axes: Axes
    ) -> list[Blocks]:
        """Rows only move, so tangents move as they do."""
        return self.value([*map(np.asarray, tangents[:2]), *operands[2:]], mesh, axes)

    def pullback(
        self, operands: Sequence[Blocks], cotangents: Sequence[Blocks], mesh: MeshCase, axes: Axes
    ) -> list[Blocks | None]:
        """A sent row gets the cotangents of all places that it was sent to; one of output, unless written, its own."""
        (operand, output, *lists), (ct,) = operands, cotangents
        check_metadata(operand, output, *lists, mesh=mesh, axes=axes)
        rank = len(mesh.sizes)
        kept = ct.astype(wide(ct.dtype)).reshape(mesh.size, *ct.shape[rank:]).copy()
        returned = np.zeros((mesh.size, *operand.shape[rank:]), kept.dtype)
        for s in slices(*lists, mesh=mesh, axes=axes):
            if s.size:
                written = kept[s.destination, s.target : s.target + s.size]
                returned[s.source, s.start : s.start + s.size] += written
                written[...] = 0
        return [returned.reshape(operand.shape), kept.reshape(output.shape), None, None, None, None]


differentiable = RaggedAllToAll()
