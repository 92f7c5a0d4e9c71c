"""Which links a collective loads: every mesh axis is a ring of its own, and messages take the shorter way round it.

A permute's blocks go along one axis after the other, in mesh order, as on a torus. The collectives that move more than
one block to a device use all links of their axes evenly, both ways round, as the bandwidth-optimal ring algorithms do
(Patarasuk and Yuan 2009); an all-to-all on a ring of p loads every link with an eighth of p operands.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.simulate.record import bytes_of

Link = tuple[str, int]
"""A mesh axis, and the way round it: 1 to the next device along it, -1 to the one before."""

RECEIVED: dict[str, Callable[[int], Fraction]] = {
    **dict.fromkeys(("psum", "psum_invariant", "unreduced_psum", "pmax", "pmin"), lambda p: Fraction(2 * (p - 1), p)),
    **dict.fromkeys(("all_gather", "all_gather_invariant", "all_gather_reduced"), lambda p: Fraction(p - 1)),
    **dict.fromkeys(("reduce_scatter", "unreduced_reduce_scatter"), lambda p: Fraction(p - 1, p)),
    **dict.fromkeys(("all_to_all", "ragged_all_to_all"), lambda p: Fraction(p, 4) if p > 2 else Fraction(p - 1, p)),
    "pbroadcast": lambda p: Fraction(min(p - 1, 1)),
}
"""What passes each device on its links, in operands, of a collective among p."""

SENT: dict[str, Callable[[int], Fraction]] = {
    **RECEIVED,
    **dict.fromkeys(("all_to_all", "ragged_all_to_all"), lambda p: Fraction(p - 1, p)),
}
"""What leaves each device, in operands: of an all-to-all less than passes it, where others' blocks go by."""

TWICE = ("psum", "psum_invariant", "unreduced_psum", "pmax", "pmin")
"""Collectives that go round their axes twice: what is reduced and scattered is gathered then."""


@dataclass(frozen=True)
class Loads:
    """What a transfer sends over the most loaded link of each kind.

    Arguments:
        bytes: the bytes, by link.
        hops: over how many links, one after the other, its farthest block goes.
        side: the shortest side of what is sent.
        sent: the bytes that leave a device, by whatever way.
        stages: how often it waits for what others send, where every device is next to every other.
    """

    bytes: Mapping[Link, Fraction] = field(default_factory=dict)
    hops: int = 0
    side: int = field(default=1, compare=False)
    sent: Fraction = field(default=Fraction(0), compare=False)
    stages: int = field(default=1, compare=False)

    def __bool__(self) -> bool:
        return bool(self.bytes)


def loads_of(equation: Any, mesh: MeshCase) -> Loads:
    """What an equation sends; nothing, if it is no collective, or among one device."""
    name, parameters = equation.primitive.name, equation.params
    if name != "ppermute" and name not in RECEIVED:
        return Loads()
    named = parameters.get("axes", parameters.get("axis_name"))
    names = named if isinstance(named, tuple | list) else (named,)
    axes = mesh.in_mesh_order([axis for axis in names if isinstance(axis, str)])
    size = sum(bytes_of(v.aval) for v in equation.invars)
    if name == "ppermute":
        loads = permuted([mesh.shape[a] for a in axes], axes, parameters["perm"], size)
        return replace(loads, side=min((side for v in equation.invars for side in v.aval.shape), default=1))
    groups = parameters.get("axis_index_groups")
    return spread(axes, mesh, len(groups[0]) if groups else mesh.axis_size(axes), name, size)


def permuted(sizes: list[int], axes: tuple[str, ...], pairs: Any, size: int) -> Loads:
    """Blocks of `size` bytes, from members to members, numbered in mesh order."""
    if not len(pairs):
        return Loads()
    at, to = (np.array(np.unravel_index([pair[i] for pair in pairs], sizes)) for i in (0, 1))
    loads: dict[Link, Fraction] = {}
    hops = np.zeros(len(pairs), int)
    for d, (axis, n) in enumerate(zip(axes, sizes, strict=True)):
        ahead = (to[d] - at[d]) % n
        for way, distance in ((1, np.where(2 * ahead <= n, ahead, 0)), (-1, np.where(2 * ahead > n, n - ahead, 0))):
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


def spread(axes: tuple[str, ...], mesh: MeshCase, members: int, name: str, size: int) -> Loads:
    """Operands of `size` bytes, moved by a collective over all links of its axes."""
    links = [(a, way) for a in axes for way in ((1, -1) if mesh.shape[a] > 2 else (1,)) if mesh.shape[a] > 1]
    if not links or members < 2:
        return Loads()
    each, stages = RECEIVED[name](members) * size / len(links), 2 if name in TWICE else 1
    hops = stages * sum(math.ceil((mesh.shape[a] - 1) / 2) for a in axes)
    return Loads(dict.fromkeys(links, each), hops, sent=SENT[name](members) * size, stages=stages)
