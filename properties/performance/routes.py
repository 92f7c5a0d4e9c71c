"""The links that a collective loads: every mesh axis is a ring, and messages take the shorter way round it.

A permute's blocks go along one axis after the other, in mesh order, as on a torus. Collectives that move more than one
block to a device use all links of their axes evenly, both ways round, as the bandwidth-optimal ring algorithms do
(Patarasuk and Yuan 2009). With `axis_index_groups` their links and hops are those of the whole axes.

Every piece of an all-to-all goes along one axis after the other. On a ring of n, a piece takes n/4 links on average,
(n^2 - 1) / (4 n) if n is odd; so each link of an axis of n carries n/8 of an operand, whatever the other axes are.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.simulate.collectives import COLLECTIVE_KINDS, axes_of
from shardproof.properties.engines.simulate.env import bytes_of

Link = tuple[str, int]
"""A mesh axis, and the way round it: 1 to the next device along it, -1 to the one before."""

RECEIVED: dict[str, Callable[[int], Fraction]] = {
    "all_reduce": lambda p: Fraction(2 * (p - 1), p),
    "all_gather": lambda p: Fraction(p - 1),
    "reduce_scatter": lambda p: Fraction(p - 1, p),
    "broadcast": lambda p: Fraction(min(p - 1, 1)),
}
"""The operands that each device receives in a ring algorithm of p; an all-reduce goes round twice."""

EXCHANGES = ("all_to_all", "ragged_all_to_all")
"""Collectives with a piece for every participant; ragged ones are taken to be even."""


@dataclass(frozen=True)
class Loads:
    """The load of a transfer on the most loaded link of each kind."""

    bytes: Mapping[Link, Fraction] = field(default_factory=dict)  # the bytes, by link
    hops: int = 0  # the links that its farthest block takes, one after the other
    side: int = field(default=1, compare=False)  # the shortest side of what is sent
    sent: Fraction = field(default=Fraction(0), compare=False)  # the bytes that leave a device, over all links
    stages: int = field(default=1, compare=False)  # the steps of a ring algorithm if all devices are neighbours

    def __bool__(self) -> bool:
        return bool(self.bytes)


class Undetermined(Exception):
    """A program's operations are not known from its trace; the message says why."""


def loads_of(equation: Any, mesh: MeshCase) -> Loads:
    """The loads of an equation; none if it is no collective, or one over one device."""
    name, parameters = equation.primitive.name, equation.params
    if name not in COLLECTIVE_KINDS:
        return Loads()
    axes, groups = mesh.in_mesh_order(axes_of(equation)), parameters.get("axis_index_groups")
    if name in EXCHANGES:
        if groups:
            raise Undetermined(f"{name} has axis_index_groups: expected none, since links have different loads")
        # a ragged one also reads lists, which stay
        return exchange_loads(axes, mesh, bytes_of(equation.invars[0].aval))
    size = sum(bytes_of(v.aval) for v in equation.invars)
    if name == "ppermute":
        loads = permute_loads([mesh.shape[a] for a in axes], axes, parameters["perm"], size)
        return replace(loads, side=min((side for v in equation.invars for side in v.aval.shape), default=1))
    return ring_loads(axes, mesh, len(groups[0]) if groups else mesh.axis_size(axes), name, size)


def permute_loads(sizes: list[int], axes: tuple[str, ...], pairs: Any, size: int) -> Loads:
    """Blocks of `size` bytes between pairs of participants, numbered in mesh order.

    Each takes the shorter way round; if both are equal, every other block takes the other way, except between two
    devices.
    """
    if not len(pairs):
        return Loads()
    at, to = (np.array(np.unravel_index([pair[i] for pair in pairs], sizes)) for i in (0, 1))
    loads: dict[Link, Fraction] = {}
    hops = np.zeros(len(pairs), int)
    for d, (axis, n) in enumerate(zip(axes, sizes, strict=True)):
        ahead = (to[d] - at[d]) % n
        back = (2 * ahead > n) | ((2 * ahead == n) & (at[d] % 2 == 1) & (n > 2))
        for way, distance in ((1, np.where(back, 0, ahead)), (-1, np.where(back, n - ahead, 0))):
            crossed = np.zeros(sizes, int)
            for step in range(int(distance.max(initial=0))):
                place = at.copy()
                place[d] = (at[d] + way * step) % n
                np.add.at(crossed, tuple(place[:, distance > step]), 1)
            if crossed.any():
                loads[axis, way] = Fraction(int(crossed.max()) * size)
            hops += distance
        at[d] = to[d]
    return Loads(loads, int(hops.max()), sent=Fraction(size))


def ring_loads(axes: tuple[str, ...], mesh: MeshCase, participants: int, name: str, size: int) -> Loads:
    """The loads of a collective of operands of `size` bytes over all links of its axes."""
    links = links_of(axes, mesh)
    if not links or participants < 2:
        return Loads()
    kind = COLLECTIVE_KINDS[name]
    received, rounds = RECEIVED[kind](participants) * size, 2 if kind == "all_reduce" else 1
    hops = rounds * sum(mesh.shape[a] // 2 for a in axes)
    return Loads(dict.fromkeys(links, received / len(links)), hops, sent=received, stages=rounds * (participants - 1))


def exchange_loads(axes: tuple[str, ...], mesh: MeshCase, size: int) -> Loads:
    """The loads of an all-to-all of operands of `size` bytes."""
    links, p = links_of(axes, mesh), mesh.axis_size(axes)
    crossed = {a: Fraction(mesh.shape[a] ** 2 // 4, mesh.shape[a]) * size for a in axes}
    loads = {(a, way): crossed[a] / (2 if mesh.shape[a] > 2 else 1) for a, way in links}
    hops = sum(mesh.shape[a] // 2 for a in axes)
    return Loads(loads, hops, sent=Fraction(p - 1, p) * size) if links else Loads()


def links_of(axes: tuple[str, ...], mesh: MeshCase) -> list[Link]:
    """A device's links along axes: one along an axis of two devices."""
    return [(a, way) for a in axes for way in ((1, -1) if mesh.shape[a] > 2 else (1,)) if mesh.shape[a] > 1]
