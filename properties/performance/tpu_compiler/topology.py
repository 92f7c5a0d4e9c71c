"""Topologies of TPU chips: their links, and an order in which a mesh's last axis is a ring of neighbours.

Links wrap round a dimension of v5e and v6e where all 16 chips of it are there, and of v4, v5p and TPU7x where it has a
multiple of 4 chips, in a slice of whole cubes of 4x4x4
(https://docs.cloud.google.com/tpu/docs/v5e, /v6e, /v4, /v5p, /tpu7x: "System architecture").
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.communication.hlo import CompiledCollective
from shardproof.properties.performance.routes import RECEIVED

Coordinates = tuple[int, ...]
Hop = tuple[Coordinates, Coordinates]
"""A link in one direction: from a chip to a neighbour."""

GENERATIONS = ("v4", "v5e", "v5p", "v6e", "tpu7x")
FLAT = {"v5e": 16, "v6e": 16}
"""Generations with chips in a plane, and the size at which a dimension is a ring."""
CUBE = 4


@dataclass(frozen=True)
class Topology:
    """Chips at the points of a grid."""

    generation: str  # one of `GENERATIONS`
    sizes: tuple[int, ...]  # the number of chips in each dimension

    @classmethod
    def parse(cls, name: str) -> "Topology":
        """Reads `v5e:2x4`."""
        generation, _, grid = name.partition(":")
        parts = grid.split("x")
        dimensions = 2 if generation in FLAT else 3
        if generation not in GENERATIONS or len(parts) != dimensions or not all(part.isdecimal() for part in parts):
            raise RequestError(f"topology={name!r}: expected one of {', '.join(GENERATIONS)} with sizes, as in v5e:2x4")
        return cls(generation, tuple(map(int, parts)))

    def __str__(self) -> str:
        return f"{self.generation}:{'x'.join(map(str, self.sizes))}"

    @property
    def chips(self) -> int:
        """The number of chips."""
        return math.prod(self.sizes)

    def wraps(self, dimension: int) -> bool:
        """True if the last chip of a dimension has a link to the first."""
        size = self.sizes[dimension]
        if self.generation in FLAT:
            return size == FLAT[self.generation]
        return all(s % CUBE == 0 for s in self.sizes)

    def route(self, start: Coordinates, end: Coordinates) -> Iterator[Hop]:
        """The links from chip to chip, one dimension after the other, the shorter way round."""
        at = list(start)
        for dimension, size in enumerate(self.sizes):
            away = end[dimension] - at[dimension]
            if self.wraps(dimension) and abs(away) * 2 > size:
                away -= size if away > 0 else -size
            for _ in range(abs(away)):
                before = tuple(at)
                at[dimension] = (at[dimension] + (1 if away > 0 else -1)) % size
                yield before, tuple(at)

    def rings(self, p: int) -> list[Coordinates]:
        """All chips in an order in which each p consecutive ones are a ring of neighbours.

        Two chips, or all chips of a dimension that wraps, are a line; others a cycle in a plane two chips wide.
        """
        lines = [d for d, size in enumerate(self.sizes) if size == p and (p == 2 or self.wraps(d))]
        if p == 1:
            return list(itertools.product(*map(range, self.sizes)))
        if lines:
            return self._tiled([1 if d != lines[-1] else p for d in range(len(self.sizes))])
        half = p // 2
        for narrow, wide in itertools.permutations(range(len(self.sizes)), 2):
            if p % 2 == 0 and self.sizes[narrow] % 2 == 0 and self.sizes[wide] % half == 0:
                return self._tiled([{narrow: 2, wide: half}.get(d, 1) for d in range(len(self.sizes))])
        raise RequestError(f"topology={self}: no rings of {p} chips are known in it")

    def _tiled(self, tile: Sequence[int]) -> list[Coordinates]:
        """The chips tile by tile, each as a cycle: up one column, and down the other."""
        cycle, wide = list(itertools.product(*map(range, tile))), [d for d, side in enumerate(tile) if side > 1]
        if len(wide) == 2:
            narrow = next(d for d in wide if tile[d] == 2)
            up, down = ([point for point in cycle if point[narrow] == at] for at in (0, 1))
            cycle = [*up, *reversed(down)]
        corners = itertools.product(*(range(0, size, step) for size, step in zip(self.sizes, tile, strict=True)))
        return [tuple(c + o for c, o in zip(corner, at, strict=True)) for corner in corners for at in cycle]


def in_rings(devices: Iterable[Any], topology: Topology, participants: int) -> list[tuple[Any, Coordinates]]:
    """The devices of a topology with their chips, each `participants` consecutive ones a ring of chips.

    If a chip is two devices, the first devices of all chips come first.
    """
    dimensions = len(topology.sizes)
    by_place = {(tuple(d.coords[:dimensions]), d.core_on_chip): d for d in devices}
    cores = sorted({core for _, core in by_place})
    places = [(chip, core) for core in cores for chip in topology.rings(participants)]
    if set(places) != set(by_place):
        raise ValueError(f"devices={[*by_place.values()]}: expected all chips of {topology}")
    return [(by_place[place], place[0]) for place in places]


def passage(
    collective: CompiledCollective, chips: Sequence[Coordinates], topology: Topology, kind: str = ""
) -> tuple[dict[Hop, Fraction], int]:
    """The bytes that a collective sends over every link, one way, and the number of links of its longest route."""
    kind, size, steps = kind or collective.kind, Fraction(collective.operand_bytes), 1
    groups = collective.groups or (tuple(range(len(chips))),)
    if collective.pairs is not None:
        sent = [(source, target, size) for source, target in collective.pairs if source != target]
    elif kind not in RECEIVED:
        sent = [(i, j, size / len(group)) for group in groups for i, j in itertools.permutations(group, 2)]
    else:
        p = max(map(len, groups))
        each, steps = RECEIVED[kind](p) * size / 2, 2 * (p - 1) if kind == "all_reduce" else p - 1
        around = [pair for group in groups for pair in zip(group, (*group[1:], group[0]), strict=True) if p > 1]
        sent = [(i, j, each) for a, b in around for i, j in ((a, b), (b, a))]
    loads, longest = dict[Hop, Fraction](), 0
    for i, j, size in sent:
        route = list(topology.route(chips[i], chips[j]))
        longest = max(longest, len(route))
        for hop in route:
            loads[hop] = loads.get(hop, Fraction(0)) + size
    return loads, steps * longest
