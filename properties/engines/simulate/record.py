"""Records of executed collectives: kind, group, bytes and direction."""

import math
from dataclasses import dataclass
from typing import Any

from shardproof.oracles.dtypes import NARROW
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.simulate.exchange import process_groups

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Collective:
    """One execution of a collective of the program.

    Arguments:
        kind: the operation: `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `permute`, `broadcast`
            or `ragged_all_to_all`.
        axes: the mesh axes, as the program gave them.
        mesh: the manual axes of the mesh that it ran on.
        groups: lists of indices over `axes` that it ran within; None if there was one group.
        perm: the pairs (source, destination) of indices over `axes` of a permute; None otherwise.
        operand_bytes: bytes of the operand, on each device.
        devices: how many devices executed it.
        round: its place, from 1, in the longest chain of collectives that need one another. Those of one round may run
            at the same time.
    """

    kind: str
    axes: tuple[str, ...]
    mesh: MeshCase
    groups: tuple[tuple[int, ...], ...] | None
    perm: Pairs | None
    operand_bytes: int
    devices: int
    round: int

    @property
    def participants(self) -> int:
        """The number of devices in each process group."""
        return len(self.groups[0]) if self.groups else self.mesh.axis_size(self.axes)

    @property
    def links(self) -> list[tuple[int, int]]:
        """The (source, destination) devices of a permute, by their position in the mesh; none of anything else."""
        (devices,) = process_groups(self.mesh, self.axes)
        ends = [(devices[:, source], devices[:, target]) for source, target in self.perm or ()]
        return [pair for sources, targets in ends for pair in zip(sources.tolist(), targets.tolist(), strict=True)]


@dataclass(frozen=True)
class Record:
    """The communication of one run.

    Arguments:
        collectives: every execution of a collective, in order.
        equations: the number of evaluated equations, those of a loop in every iteration.
    """

    collectives: tuple[Collective, ...]
    equations: int

    @property
    def rounds(self) -> int:
        """The length of the longest chain of collectives that need one another."""
        return max((c.round for c in self.collectives), default=0)


class Recorder:
    """Collects a `Record` while a program is interpreted.

    Arguments:
        operands: the rounds after which each operand of the current equation is known.
        results: those of its results, if its rule distinguishes them; otherwise empty.
        round: the round after which all of its operands, or results, are known.
    """

    def __init__(self) -> None:
        self.operands: list[int] = []
        self.results: list[int] = []
        self.round = 0
        self._executed: list[Collective] = []
        self._equations = 0

    def executed(self, **collective: Any) -> None:
        """Records one execution of a collective, a round after its operands."""
        self.round += 1
        self._executed.append(Collective(**collective, round=self.round))

    def begin(self, operands: list[int], start: int) -> None:
        """Begins an equation, after `start` if it has no operands."""
        self._equations += 1
        self.operands, self.results, self.round = operands, [], max(operands, default=start)

    def end(self, results: int) -> list[int]:
        """Ends an equation: the rounds after which each of its results is known."""
        return self.results if len(self.results) == results else [self.round] * results

    @property
    def record(self) -> Record:
        """The record so far."""
        return Record(tuple(self._executed), self._equations)


def bytes_of(aval: object) -> int:
    """The bytes of a block, from its traced type; sub-byte dtypes are counted packed."""
    elements, dtype = math.prod(getattr(aval, "shape", ())), getattr(aval, "dtype", None)
    if str(dtype) in NARROW:
        return math.ceil(elements * NARROW[str(dtype)] / 8)
    return elements * int(getattr(dtype, "itemsize", 0))  # of a random key as well, which is no dtype of NumPy's
