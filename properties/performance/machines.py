"""What a machine is to a timeline, and the machine whose links need as long as its products."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.performance.operations import Operation
from shardproof.properties.performance.routes import Link


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

    Arguments:
        flops: how many multiplications and additions there are in all.
        bytes: how many bytes there are on the busiest link.
        axes: along which mesh axes sending takes time.
        part: how long the busiest link needs, as a part of all products.
    """

    flops: int
    bytes: Fraction
    axes: frozenset[str]
    part: Fraction

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


def products_in(operations: Sequence[Operation]) -> bool:
    """Whether anything is multiplied, were it of no element."""
    return any(o.flops or products_in(o.body) for o in operations)


def shortest_side(operations: Sequence[Operation]) -> float:
    """The shortest side of any block that is sent; of none, infinity."""
    own = (o.loads.side for o in operations if o.transfers)
    return min([*own, *(shortest_side(o.body) for o in operations)], default=math.inf)


def flops_in(operations: Sequence[Operation]) -> int:
    """The multiplications and additions of all products, loops as often as they run."""
    return sum(sum(o.flops.values()) + o.times * flops_in(o.body) for o in operations)


def loads_in(operations: Sequence[Operation]) -> dict[Link, Fraction]:
    """The bytes on every link."""
    found: dict[Link, Fraction] = {}
    for operation in operations:
        inner = {link: operation.times * size for link, size in loads_in(operation.body).items()}
        for link, size in (*operation.loads.bytes.items(), *inner.items()):
            found[link] = found.get(link, Fraction(0)) + size
    return found
