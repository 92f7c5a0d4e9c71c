"""What the executed collectives moved: kind, group, bytes and direction, counted."""

import dataclasses
import math
from collections import Counter
from dataclasses import dataclass, field

from shardproof.oracles.dtypes import NARROW
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.simulate.exchange import process_groups

Pairs = tuple[tuple[int, int], ...]
Traffic = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Collective:
    """One collective of the program.

    Arguments:
        kind: the operation: `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `permute`, `broadcast`
            or `ragged_all_to_all`.
        primitive: the primitive's name in the traced program.
        axes: the mesh axes, as the program gave them.
        mesh: the manual axes of the mesh that it ran on.
        groups: lists of indices over `axes` that it ran within; None if there was one group.
        perm: the pairs (source, destination) of indices over `axes` of a permute; None otherwise.
        operand_bytes: bytes of the operand, on each device.
        result_bytes: bytes of the result, on each device.
        location: where in the program it stands.
        devices: how many devices executed it.
        count: how often it was executed.
        traffic: (source device, destination device, bytes) as sent, where that depends on data.
        round: its place in the longest chain of collectives of which each needs what the one before it brought,
            counted from 1. Those of one round may be under way at the same time.
    """

    kind: str
    primitive: str
    axes: tuple[str, ...]
    mesh: MeshCase
    groups: tuple[tuple[int, ...], ...] | None
    perm: Pairs | None
    operand_bytes: int
    result_bytes: int
    location: str
    devices: int
    count: int = 1
    traffic: Traffic = ()
    round: int = field(default=1, compare=False)

    @property
    def participants(self) -> int:
        """The number of devices in each process group."""
        return len(self.groups[0]) if self.groups else self.mesh.axis_size(self.axes)

    @property
    def links(self) -> dict[tuple[int, int], int]:
        """Bytes over each (source, destination) pair of devices, in all executions together.

        Devices are numbered by their position in the mesh, row-major. Only permutes and ragged
        exchanges say who sends to whom; for all others the algorithm decides, and this is empty.
        """
        result: Counter[tuple[int, int]] = Counter()
        for source, destination, size in self.traffic:
            result[source, destination] += size * self.count
        if self.perm:
            (devices,) = process_groups(self.mesh, self.axes)
            participants = devices.T
            for source, destination in self.perm:
                for pair in zip(participants[source].tolist(), participants[destination].tolist(), strict=True):
                    result[pair] += self.operand_bytes * self.count
        return dict(result)


@dataclass(frozen=True)
class Record:
    """What one run did besides computing.

    Arguments:
        collectives: every collective that was executed, in order of first execution.
        peak_bytes: the most bytes that a `shard_map` holds at one time on each device, over all of them, if it
            is arranged as a compiler would (see `memory`).
        sequence: the same collectives one execution after the other, each with a `count` of one.
        equations: how many equations were evaluated, those of a loop in every iteration.
    """

    collectives: tuple[Collective, ...]
    peak_bytes: int
    sequence: tuple[Collective, ...] = ()
    equations: int = 0

    def count(self, kind: str) -> int:
        """How many collectives of a kind were executed."""
        return sum(c.count for c in self.collectives if c.kind == kind)

    def bytes_in(self, kind: str) -> int:
        """Bytes of operands, on each device, of all executed collectives of a kind."""
        return sum(c.count * c.operand_bytes for c in self.collectives if c.kind == kind)

    @property
    def rounds(self) -> int:
        """How many collectives must at least follow one another."""
        return max((c.round for c in self.sequence), default=0)


class Recorder:
    """Collects a `Record` while a program is interpreted.

    Arguments:
        operands: the rounds after which each operand of the equation under way is known.
        results: those of its results, where its rule can tell them apart; otherwise empty.
        round: those of all of its operands, or results.
    """

    def __init__(self) -> None:
        self.operands: list[int] = []
        self.results: list[int] = []
        self.round = 0
        self._counts: dict[Collective, int] = {}
        self._sequence: list[Collective] = []
        self._peak_bytes = 0
        self._equations = 0

    def executed(self, collective: Collective) -> None:
        """Counts one execution, a round after what its operands come from."""
        self.round += 1
        self._counts[collective] = self._counts.get(collective, 0) + 1
        self._sequence.append(dataclasses.replace(collective, round=self.round))

    def begin(self, operands: list[int], start: int) -> None:
        """An equation is about to be evaluated, not before `start` if it has no operands."""
        self._equations += 1
        self.operands, self.results, self.round = operands, [], max(operands, default=start)

    def end(self, results: int) -> list[int]:
        """The rounds after which each of the equation's results is known."""
        return self.results if len(self.results) == results else [self.round] * results

    def held(self, peak_bytes: int) -> None:
        """Takes note of the bytes that one `shard_map` holds alive."""
        self._peak_bytes = max(self._peak_bytes, peak_bytes)

    @property
    def record(self) -> Record:
        """What has been collected so far."""
        collectives = tuple(dataclasses.replace(c, count=n) for c, n in self._counts.items())
        return Record(collectives, self._peak_bytes, tuple(self._sequence), self._equations)


def bytes_of(aval: object) -> int:
    """The bytes of a block, from its traced type; sub-byte dtypes are counted packed."""
    elements, dtype = math.prod(getattr(aval, "shape", ())), getattr(aval, "dtype", None)
    if str(dtype) in NARROW:
        return math.ceil(elements * NARROW[str(dtype)] / 8)
    return elements * int(getattr(dtype, "itemsize", 0))  # of a random key as well, which is no dtype of NumPy's
