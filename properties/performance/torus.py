"""What a collective of a compiled program loads on the links between the chips of a topology.

A permute's blocks go dimension by dimension, the shorter way. The others are taken to be the bandwidth-optimal rings in
the order of their groups, half of the bytes each way round (Patarasuk and Yuan 2009); of an all-to-all every piece goes
its own way.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from shardproof.properties.communication.hlo import CompiledCollective
from shardproof.properties.performance.tpu_compiler.topology import Coordinates, Hop, Topology

ROUNDS: dict[str, Callable[[int], Fraction]] = {
    "all_gather": lambda p: Fraction(p - 1),
    "reduce_scatter": lambda p: Fraction(p - 1, p),
    "all_reduce": lambda p: Fraction(2 * (p - 1), p),
    "broadcast": lambda p: Fraction(1),
}
"""What passes on from each to the next of a ring of p, in operands."""


@dataclass(frozen=True)
class Passage:
    """A collective on its way.

    Arguments:
        loads: the bytes on every link, one way.
        hops: over how many links, one after the other, its farthest block goes.
    """

    loads: dict[Hop, Fraction]
    hops: int


def passage(
    collective: CompiledCollective, chips: Sequence[Coordinates], topology: Topology, kind: str = ""
) -> Passage:
    """What a collective loads.

    Arguments:
        collective: it.
        chips: where each device is.
        topology: the chips' neighbours.
        kind: what the compiler makes of it, if that is another one.
    """
    kind, size = kind or collective.kind, Fraction(collective.operand_bytes)
    if collective.pairs is not None:
        sent = [(chips[source], chips[target], size) for source, target in collective.pairs if source != target]
        return _of(topology, sent, 1)
    groups = collective.groups or (tuple(range(len(chips))),)
    if kind not in ROUNDS:  # every piece to its own participant
        pieces = [(chips[i], chips[j], size / len(g)) for g in groups for i, j in itertools.permutations(g, 2)]
        return _of(topology, pieces, 1)
    p = max(map(len, groups))
    if p < 2:
        return Passage({}, 0)
    each = ROUNDS[kind](p) * size / 2
    around = [(chips[a], chips[b]) for group in groups for a, b in zip(group, (*group[1:], group[0]), strict=True)]
    both = [(start, end, each) for a, b in around for start, end in ((a, b), (b, a))]
    return _of(topology, both, 2 * (p - 1) if kind == "all_reduce" else p - 1)


def _of(topology: Topology, sent: Iterable[tuple[Coordinates, Coordinates, Fraction]], steps: int) -> Passage:
    loads: Counter[Hop] = Counter()
    longest = 0
    for start, end, size in sent:
        route = list(topology.route(start, end))
        longest = max(longest, len(route))
        for hop in route:
            loads[hop] += size  # type: ignore[assignment] # a Counter of fractions
    return Passage(dict(loads), steps * longest)  # type: ignore[arg-type]
