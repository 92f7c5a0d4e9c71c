"""Times as intervals, and what of a program's communication is exposed."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

Times = list[tuple[Fraction, Fraction]]
"""From when until when, one after the other."""


@dataclass(frozen=True)
class Exposure:
    """How long a program computes and communicates.

    Arguments:
        total: how long it takes.
        compute: how long the device computes.
        communication: how long something is under way on a link.
        exposed: how long something is, and nothing is computed.
    """

    total: Fraction
    compute: Fraction
    communication: Fraction
    exposed: Fraction

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
