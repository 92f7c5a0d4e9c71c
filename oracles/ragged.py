"""What `ragged_all_to_all` means, and which of its arguments contradict each other.

Each device holds `operand` `[N, …]`, `output` `[M, …]` and four lists of k * p integers, k for each of
the p participants of its process group. Entries `[j * k, (j + 1) * k)` belong to participant j: of the slices
that a device *sends* to j, `input_offsets` says where they begin in its own operand, `send_sizes` how many
rows they have, and `output_offsets` where they begin in *j's* output; of the slices that it *receives*
from j, `recv_sizes` says how many rows they have.
"""

import itertools
from typing import NamedTuple, NoReturn

import numpy as np

from shardproof.oracles.collectives import Axes, Blocks, Operands, Tangents
from shardproof.oracles.dtypes import widened
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


def process_groups(mesh: MeshCase, axes: Axes) -> np.ndarray:
    """The devices of every process group, by position in the mesh (row-major): `[group, participant]`."""
    names = as_axes(axes)
    order = [mesh.axis_names.index(name) for name in names]
    rest = [i for i in range(len(mesh.sizes)) if i not in order]
    return np.arange(mesh.size).reshape(mesh.sizes).transpose(*rest, *order).reshape(-1, mesh.axis_size(names))


def slices(operands: Operands, mesh: MeshCase, axes: Axes) -> list[Slice]:
    """All slices that are sent and not empty.

    The lists of all participants agree, every slice lies inside its buffers, and no row is written twice. An empty
    slice may begin anywhere.

    Raises:
        RaggedMismatch: naming the devices and the numbers that contradict each other.
    """
    operand, output, *lists = operands
    begin, sent, target, received = (x.reshape(mesh.size, -1).tolist() for x in lists)
    rows_in, rows_out = operand.shape[len(mesh.sizes)], output.shape[len(mesh.sizes)]
    writer = np.full((mesh.size, rows_out), -1)
    found: list[Slice] = []

    def name(device: int) -> str:
        return device_name(mesh, [int(i) for i in np.unravel_index(device, mesh.sizes)])

    def refuse(text: str) -> NoReturn:
        raise RaggedMismatch(f"ragged_all_to_all over {as_axes(axes)} on the mesh {mesh}: {text}")

    row, place = operand.shape[len(mesh.sizes) + 1 :], output.shape[len(mesh.sizes) + 1 :]
    if row != place:
        refuse(
            f"rows of the operand have shape {row}, those of the output {place}: expected the same (operand, output)"
        )
    if any(x.dtype.kind not in "iu" for x in lists):
        refuse(f"lists of {', '.join(str(x.dtype) for x in lists)}: expected integers")
    for participants in process_groups(mesh, axes).tolist():
        each, rest = divmod(len(sent[0]), len(participants))
        if rest:
            refuse(f"send_sizes has {len(sent[0])} entries: expected a multiple of {len(participants)} participants")
        for i, j, k in itertools.product(range(len(participants)), range(len(participants)), range(each)):
            out, back = j * each + k, i * each + k
            source, destination = participants[i], participants[j]
            s = Slice(source, destination, begin[source][out], sent[source][out], target[source][out])
            sends = f"device {name(source)} sends {s.size} rows to device {name(destination)}"
            if s.size != received[destination][back]:
                refuse(f"{sends}, which expects {received[destination][back]} (send_sizes and recv_sizes)")
            if s.size < 0:
                refuse(f"{sends}: expected none or more")
            if not s.size:
                continue
            if s.start < 0 or s.start + s.size > rows_in:
                refuse(
                    f"device {name(source)} sends rows [{s.start}, {s.start + s.size}) to device {name(destination)}: "
                    f"its operand has {rows_in} rows (input_offsets, send_sizes)"
                )
            if s.target < 0 or s.target + s.size > rows_out:
                refuse(
                    f"device {name(source)} writes rows [{s.target}, {s.target + s.size}) of device "
                    f"{name(destination)}, whose output has {rows_out} rows (output_offsets, send_sizes)"
                )
            rows = writer[destination, s.target : s.target + s.size]
            if (rows >= 0).any():
                first = int(np.argmax(rows >= 0))
                refuse(
                    f"devices {name(int(rows[first]))} and {name(source)} both write row {s.target + first} of device "
                    f"{name(destination)} (output_offsets, send_sizes)"
                )
            rows[:] = source
            found.append(s)
    return found


def ragged_all_to_all(operands: Operands, mesh: MeshCase, axes: Axes) -> Blocks:
    """Every slice lands where its sender says in its receiver's output; all other rows keep `output`.

    Raises:
        RaggedMismatch: if the lists contradict each other.
    """
    rank = len(mesh.sizes)
    operand, output = widened(operands[:2])
    source = operand.reshape(mesh.size, *operand.shape[rank:])
    result = output.reshape(mesh.size, *output.shape[rank:]).copy()
    for s in slices(operands, mesh, axes):
        result[s.destination, s.target : s.target + s.size] = source[s.source, s.start : s.start + s.size]
    return result.reshape(output.shape)


class RaggedAllToAll:
    """The exchange with its derivatives with respect to operand and output; the lists have none.

    Operands are operand, output, input_offsets, send_sizes, output_offsets and recv_sizes. Derivatives are exact, in
    `oracles.dtypes.wide`, and their transpose is taken over all blocks of all devices: each has its own cotangent
    (see `oracles.transposes`). Everything raises RaggedMismatch if the lists contradict each other.
    """

    def value(self, operands: Operands, mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """Every slice lands where its sender says; all other rows keep the output."""
        return [ragged_all_to_all(operands, mesh, axes)]

    def pushforward(self, operands: Operands, tangents: Tangents, mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """Rows only move, so tangents move as they do."""
        return self.value([*tangents[:2], *operands[2:]], mesh, axes)

    def pullback(self, operands: Operands, cotangents: Tangents, mesh: MeshCase, axes: Axes) -> list[Blocks | None]:
        """A sent row gets the cotangents of all places that it was sent to; one of output, unless written, its own."""
        (operand, output, *_), (ct,) = operands, widened(cotangents)
        rank = len(mesh.sizes)
        kept = ct.reshape(mesh.size, *ct.shape[rank:]).copy()
        returned = np.zeros((mesh.size, *operand.shape[rank:]), kept.dtype)
        for s in slices(operands, mesh, axes):
            written = kept[s.destination, s.target : s.target + s.size]
            returned[s.source, s.start : s.start + s.size] += written
            written[...] = 0
        return [returned.reshape(operand.shape), kept.reshape(output.shape), None, None, None, None]


differentiable = RaggedAllToAll()
