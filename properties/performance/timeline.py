"""When a device computes and when its links are busy, on a stated machine: what of its communication is hidden.

Resources are the device's arithmetic and each of its links, one way; an operation starts as soon as what it needs is
there and its resources are free, in that order. A loop is a barrier: no compiler moves work from one iteration into
another, or past the loop.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Protocol

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.performance.operations import Operation, flops_in, within
from shardproof.properties.performance.routes import Link

Times = list[tuple[Fraction, Fraction]]
"""From when until when, one after the other."""


@dataclass(frozen=True)
class Exposure:
    """How long a program computes and communicates."""

    total: Fraction  # how long it takes
    compute: Fraction  # how long the device computes
    communication: Fraction  # how long something is under way on a link
    exposed: Fraction  # how long something is, and nothing is computed

    @property
    def hidden(self) -> Fraction:
        """How long something is under way while the device computes."""
        return self.communication - self.exposed

    @property
    def share(self) -> Fraction:
        """What part of the communication is exposed; of none, zero."""
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
    """What of some times is not among others; both without overlaps, and in order."""
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
    """How long times without overlaps are in all."""
    return sum((end - start for start, end in times), Fraction(0))


class Machine(Protocol):
    """How long an operation takes, and what it takes meanwhile."""

    def seconds(self, operation: Operation) -> Fraction:
        """How long it takes alone."""

    def links(self, operation: Operation) -> tuple[Link, ...]:
        """The links that it takes; of what sends nothing, none."""


@dataclass(frozen=True)
class Balanced:
    """Only products and links take time, and the busiest link needs just as long as p-1 of p products.

    On it a ring of p participants exposes nothing, if it hides all that it can: one of its p products, the first or the
    last, has nothing to hide.
    """

    flops: int  # how many multiplications and additions there are in all
    bytes: Fraction  # how many bytes there are on the busiest link
    axes: frozenset[str]  # along which mesh axes sending takes time
    part: Fraction  # how long the busiest link needs, as a part of all products

    @classmethod
    def of(cls, operations: Sequence[Operation], mesh: MeshCase, axes: Iterable[str]) -> "Balanced":
        """The machine that is balanced for a program, as far as it sends along some axes."""
        along = frozenset(axes)
        loads = (size for (axis, _), size in loads_in(operations).items() if axis in along)
        p = mesh.axis_size(mesh.in_mesh_order(along))
        return cls(flops_in(operations), max(loads, default=Fraction(0)), along, Fraction(p - 1, p))

    def seconds(self, operation: Operation) -> Fraction:
        """In parts of what all products take."""
        if operation.transfers:
            loads = (size for (axis, _), size in operation.loads.bytes.items() if axis in self.axes)
            return self.part * max(loads, default=Fraction(0)) / (self.bytes or 1)
        return Fraction(sum(operation.flops.values()), self.flops) if self.flops else Fraction(0)

    def links(self, operation: Operation) -> tuple[Link, ...]:
        """One for every way along every axis that it loads."""
        return tuple(operation.loads.bytes)


def shortest_side(operations: Sequence[Operation]) -> float:
    """The shortest side of any block that is sent; of none, infinity."""
    return min((one.loads.side for one, _ in within(operations) if one.transfers), default=math.inf)


def loads_in(operations: Sequence[Operation]) -> dict[Link, Fraction]:
    """The bytes on every link."""
    found: dict[Link, Fraction] = {}
    for operation, times in within(operations):
        for link, size in operation.loads.bytes.items():
            found[link] = found.get(link, Fraction(0)) + times * size
    return found


COMPUTE = "compute"
"""The device's arithmetic, beside its links."""


@dataclass(frozen=True)
class Wait:
    """A time in which nothing is computed because of a transfer."""

    transfer: Operation  # the one that is over last in it
    then: Operation | None  # what waits for it; None: the end of its block
    time: Fraction  # how long, in all iterations


@dataclass(frozen=True)
class Span:
    """When an operation is under way, from the start of its block."""

    operation: Operation  # which one
    place: int  # its place in the block
    start: Fraction  # in the unit of the machine: seconds, or parts of what all products of a program take
    end: Fraction
    links: tuple[Link, ...] = ()  # those that it takes
    inside: "Timeline | None" = None  # of a loop, one iteration


@dataclass(frozen=True)
class Timeline(Exposure):
    """What happens in a block, once."""

    spans: tuple[Span, ...] = ()  # all of its operations
    waits: tuple[Wait, ...] = ()  # what is exposed, by what it is that waits


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
    """Every operation as early as it can be; of several that could begin at a time, the first of the program."""
    done: dict[int, Fraction] = {}
    free: dict[Link | str, Fraction] = {}
    idle: Fraction = Fraction(0)
    """When a loop that was the last to begin ends: nothing begins before."""
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
        for one in links[place] or (COMPUTE,) if end > start else ():  # what takes no time is waited for by nothing
            free[one] = end
        yield Span(operation, place, start, end, links[place], inside)


def _wait(spans: list[Span], start: Fraction, end: Fraction) -> Wait:
    """The wait that explains an exposed interval: the transfer that ends last in it, and the operation that is next."""
    last = max((s for s in spans if s.operation.transfers and s.start < end and s.end > start), key=lambda s: s.end)
    then = next((s.operation for s in spans if s.start >= end and last.place in s.operation.reads), None)
    return Wait(last.operation, then, end - start)
