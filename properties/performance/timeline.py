"""When a device computes and when its links are busy, on a stated machine: what of its communication is hidden.

Resources are the device's arithmetic and each of its links, one way; an operation starts as soon as what it needs is
there and its resources are free, in that order. A loop is a barrier: no compiler moves work from one iteration into
another, or past the loop.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from shardproof.properties.performance.intervals import Exposure, Times, length, minus, union
from shardproof.properties.performance.machines import Machine
from shardproof.properties.performance.operations import Operation
from shardproof.properties.performance.routes import Link

COMPUTE = "compute"
"""The device's arithmetic, beside its links."""


@dataclass(frozen=True)
class Wait:
    """A time in which nothing is computed because of a transfer.

    Arguments:
        transfer: the one that is over last in it.
        then: what waits for it; None: the end of its block.
        time: how long, in all iterations.
    """

    transfer: Operation
    then: Operation | None
    time: Fraction


@dataclass(frozen=True)
class Span:
    """When an operation is under way, from the start of its block.

    Arguments:
        operation: which one.
        place: its place in the block.
        start: in the unit of the machine: seconds, or parts of what all products of a program take.
        end: likewise.
        links: those that it takes.
        inside: of a loop, one iteration.
    """

    operation: Operation
    place: int
    start: Fraction
    end: Fraction
    links: tuple[Link, ...] = ()
    inside: "Timeline | None" = None


@dataclass(frozen=True)
class Timeline(Exposure):
    """What happens in a block, once.

    Arguments:
        spans: all of its operations.
        waits: what is exposed, by what it is that waits.
    """

    spans: tuple[Span, ...] = ()
    waits: tuple[Wait, ...] = ()


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
