"""A timeline of a device's computation and of its links on a stated machine, and the communication that it hides.

Resources are the device's arithmetic and each of its links, one way; an operation starts as soon as its inputs are
there and its resources are free. A loop is a barrier: no compiler moves work from one iteration into another, or past
the loop.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.performance.chips import Chip
from shardproof.properties.performance.operations import Operation, flops_in, within
from shardproof.properties.performance.routes import Link

Times = list[tuple[Fraction, Fraction]]
"""Starts and ends, in order."""


@dataclass(frozen=True)
class Exposure:
    """The times in which a program computes and communicates."""

    total: Fraction
    compute: Fraction  # the time in which the device computes
    communication: Fraction  # the time in which a link is busy
    exposed: Fraction  # the part of that in which nothing is computed

    @property
    def hidden(self) -> Fraction:
        """The time in which a link is busy and the device computes."""
        return self.communication - self.exposed

    @property
    def share(self) -> Fraction:
        """The part of the communication that is exposed; zero without any."""
        return self.exposed / self.communication if self.communication else Fraction(0)


def union(spans: Iterable[tuple[Fraction, Fraction]]) -> Times:
    """The same times without overlaps, in order."""
    found: Times = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif end > start:
            found.append((start, end))
    return found


def minus(these: Times, those: Times) -> Times:
    """The difference of two sets of times, both without overlaps and in order."""
    found = []
    for start, end in these:
        at = start
        for first, last in those:
            if last <= at or first >= end:
                continue
            if first > at:
                found.append((at, first))
            at = max(at, last)
        if at < end:
            found.append((at, end))
    return found


def length(times: Times) -> Fraction:
    """The total length of times without overlaps."""
    return sum((end - start for start, end in times), Fraction(0))


@dataclass(frozen=True)
class Balanced:
    """Only products and links take time, and the busiest link needs just as long as p-1 of p products.

    A ring of p participants that hides all it can exposes nothing there: the first or the last of its p products has
    nothing to hide.
    """

    flops: int  # multiplications and additions in all
    bytes: Fraction  # on the busiest link
    axes: frozenset[str]  # the mesh axes along which sending takes time
    part: Fraction  # the time of the busiest link, as a part of that of all products

    @classmethod
    def of(cls, operations: Sequence[Operation], mesh: MeshCase, axes: Iterable[str]) -> "Balanced":
        """The machine that is balanced for what a program sends along some axes."""
        along = frozenset(axes)
        loads = (size for (axis, _), size in loads_in(operations).items() if axis in along)
        p = mesh.axis_size(mesh.in_mesh_order(along))
        return cls(flops_in(operations), max(loads, default=Fraction(0)), along, Fraction(p - 1, p))

    def seconds(self, operation: Operation) -> Fraction:
        """The time of an operation as a part of that of all products."""
        if operation.transfers:
            loads = (size for (axis, _), size in operation.loads.bytes.items() if axis in self.axes)
            return self.part * max(loads, default=Fraction(0)) / (self.bytes or 1)
        return Fraction(sum(operation.flops.values()), self.flops) if self.flops else Fraction(0)

    def links(self, operation: Operation) -> tuple[Link, ...]:
        """One link for every way along every axis with a load."""
        return tuple(operation.loads.bytes)


def shortest_side(operations: Sequence[Operation]) -> float:
    """The shortest side of any block that is sent; infinity if none is."""
    return min((one.loads.side for one, _ in within(operations) if one.transfers), default=math.inf)


def loads_in(operations: Sequence[Operation]) -> dict[Link, Fraction]:
    """The bytes on every link."""
    found: dict[Link, Fraction] = {}
    for operation, times in within(operations):
        for link, size in operation.loads.bytes.items():
            found[link] = found.get(link, Fraction(0)) + times * size
    return found


Machine = Chip | Balanced

COMPUTE = "compute"
"""The device's arithmetic, beside its links."""


@dataclass(frozen=True)
class Wait:
    """A time in which nothing is computed because of a transfer."""

    transfer: Operation  # the one that ends last in it
    then: Operation | None  # the operation that waits for it; None: the end of its block
    time: Fraction  # in all iterations


@dataclass(frozen=True)
class Span:
    """Start and end of an operation, from the start of its block."""

    operation: Operation
    place: int  # its place in the block
    start: Fraction  # in the unit of the machine: seconds, or parts of the time of all products of a program
    end: Fraction
    links: tuple[Link, ...] = ()
    inside: "Timeline | None" = None  # one iteration of a loop


@dataclass(frozen=True)
class Timeline(Exposure):
    """One run of a block."""

    spans: tuple[Span, ...] = ()
    waits: tuple[Wait, ...] = ()  # the exposed times


def timeline(operations: Sequence[Operation], machine: Machine) -> Timeline:
    """The timeline of a block."""
    spans = sorted(_scheduled(operations, machine), key=lambda span: (span.start, span.place))
    loops = [(span, span.inside) for span in spans if span.inside is not None]
    computing = union((s.start, s.end) for s in spans if s.inside is None and not s.operation.transfers)
    sending = union((s.start, s.end) for s in spans if s.operation.transfers)
    waits = [_wait(spans, start, end) for start, end in minus(sending, computing)]
    for span, inside in loops:
        waits += [replace(wait, time=wait.time * span.operation.times) for wait in inside.waits]

    def all_of(own: Times, name: str) -> Fraction:
        repeated = sum(getattr(inside, name) * span.operation.times for span, inside in loops)
        return length(own) + repeated

    return Timeline(
        max((span.end for span in spans), default=Fraction(0)),
        all_of(computing, "compute"),
        all_of(sending, "communication"),
        all_of(minus(sending, computing), "exposed"),
        tuple(spans),
        tuple(waits),
    )


def _scheduled(operations: Sequence[Operation], machine: Machine) -> Iterator[Span]:
    """Every operation as early as possible; if several can start at the same time, the first of the program."""
    done: dict[int, Fraction] = {}
    free: dict[Link | str, Fraction] = {}
    idle = Fraction(0)  # the end of the last loop, before which nothing starts
    left = dict(enumerate(operations))
    took = [machine.seconds(operation) for operation in operations]
    links = [machine.links(operation) for operation in operations]
    while left:
        best: tuple[Fraction, int] | None = None
        for place, operation in left.items():
            if not operation.reads <= done.keys():
                continue
            taken = [free.get(one, idle) for one in links[place] or (COMPUTE,)] if took[place] else []
            busy = free.values() if operation.body else taken
            start = max([idle, *(done[i] for i in operation.reads), *busy])
            if best is None or start < best[0]:
                best = (start, place)
        assert best is not None
        start, place = best
        operation = left.pop(place)
        inside = timeline(operation.body, machine) if operation.body else None
        end = start + (took[place] if inside is None else inside.total * operation.times)
        done[place] = end
        if inside is not None:
            idle = end
        for one in links[place] or (COMPUTE,) if end > start else ():  # nothing waits for what takes no time
            free[one] = end
        yield Span(operation, place, start, end, links[place], inside)


def _wait(spans: list[Span], start: Fraction, end: Fraction) -> Wait:
    """The wait that explains an exposed interval: the transfer that ends last in it, and the operation that is next."""
    last = max((s for s in spans if s.operation.transfers and s.start < end and s.end > start), key=lambda s: s.end)
    then = next((s.operation for s in spans if s.start >= end and last.place in s.operation.reads), None)
    return Wait(last.operation, then, end - start)
