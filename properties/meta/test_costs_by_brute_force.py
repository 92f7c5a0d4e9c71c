"""Formulas of costs that an implementation counts in the same way: against all routings, and all pairs of layouts."""

import itertools
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from shardproof.oracles.moe.costs import Sizes

from shardproof.oracles.baselines import Layout, relaid_cost
from shardproof.oracles.communication import Cost
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.moe.dropping import POLICIES, dispatch
from shardproof.oracles.moe.routing import Routing
from shardproof.oracles.reshard import exchanged_cost, lacking

pytestmark = pytest.mark.either_end

LAYERS = [
    (1, 3, 2, 1),
    (1, 2, 3, 2),
    (2, 2, 1, 1),
    (2, 2, 2, 1),
    (2, 1, 2, 2),
    (2, 3, 1, 1),
    (2, 3, 1, 2),
    (3, 1, 1, 2),
]
"""Participants, tokens of each, experts of each, and how many a token chooses."""


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("participants", "tokens", "held", "top_k"), LAYERS)
def test_buffers_have_room_for_the_worst_routing(
    participants: int, tokens: int, held: int, top_k: int, policy: str
) -> None:
    """What a participant sends to one expert, and what it keeps, fills its buffers by some routing, and by none more.

    All gates are the same, so that of tokens the first wins.
    """
    experts = participants * held
    choices = [*itertools.permutations(range(experts), top_k)]
    for capacity in (None, 0, 1, 2, 3):
        sent = kept = 0
        for routing in itertools.product(choices, repeat=participants * tokens):
            chosen = np.array(routing)
            found = dispatch(
                Routing(chosen, np.full(chosen.shape, 0.5)), participants, experts, capacity=capacity, policy=policy
            ).kept
            sent = max(sent, *Counter((pair.sender, pair.expert) for pair in found).values(), 0)
            kept = max(kept, *Counter(pair.receiver for pair in found).values(), 0)
        sizes = Sizes(
            participants=participants,
            tokens=tokens,
            features=1,
            outputs=1,
            held=held,
            top_k=top_k,
            capacity=capacity,
            policy=policy,
            bits=8,
            wide=8,
        )
        assert (sizes.room, sizes.buffer) == (sent, kept), capacity


CUBE = MeshCase(("x", "y", "z"), (2, 2, 2))
SIDES = (8, 8)
LAYOUTS: list[Layout] = [
    (axes[:cut], axes[cut:])
    for count in range(4)
    for axes in itertools.permutations(CUBE.axis_names, count)
    for cut in range(count + 1)
]
"""All layouts of a matrix on a mesh of three axes, each of two devices."""


def given_up(held: Layout, wanted: Layout) -> tuple[int, int]:
    """How many parts each dimension has by the axes that it gives up: those behind what both layouts begin with."""
    parts = []
    for old, new in zip(held, wanted, strict=True):
        common = max(n for n in range(len(old) + 1) if old[:n] == new[:n])
        parts.append(2 ** len(old[common:]))
    return parts[0], parts[1]


def block(layout: Layout) -> int:
    """The elements that a device holds."""
    return SIDES[0] * SIDES[1] // 2 ** (len(layout[0]) + len(layout[1]))


def received(cost: Cost, parts: tuple[int, int]) -> tuple[int, int]:
    """The elements that each device receives, and how many it then has."""
    rows, columns = parts
    if not cost.counts:
        return 0, 0
    if dict(cost.counts) == {"all_to_all": 1}:
        n = cost.bytes_in("all_to_all")
        return n - n // (rows * columns), n
    assert {*dict(cost.counts)} == {"all_gather"}
    n = cost.bytes_in("all_gather") // (1 if cost.count("all_gather") == 1 else 1 + rows)
    return (rows * columns - 1) * n, rows * columns * n


@pytest.mark.parametrize("formula", [exchanged_cost, relaid_cost])
def test_a_layout_costs_what_a_device_lacks(formula: Callable[..., Cost]) -> None:
    """Nobody receives less than it lacks; nor more, unless it is cut off again; nothing moves if nothing is lacking."""
    exact = 0
    for held, wanted in itertools.product(LAYOUTS, repeat=2):
        need, cost = lacking(CUBE, SIDES, held, wanted), formula(CUBE, SIDES, held, wanted)
        if formula is relaid_cost:  # dimensions that differ are gathered as a whole
            parts = [2 ** len(old) if old != new else 1 for old, new in zip(held, wanted, strict=True)]
            own, then = received(cost, (parts[0], parts[1]))
        else:
            own, then = received(cost, given_up(held, wanted))
            assert bool(cost.counts) == (need > 0), (held, wanted)
        assert own >= need, (held, wanted)
        if own and then == block(wanted):
            assert own == need, (held, wanted)
            exact += 1
    assert exact > 80


def test_an_exchange_is_its_own_transpose() -> None:
    """Backward an exchange sends as much, and what was gathered is cut, which sends nothing."""
    for held, wanted in itertools.product(LAYOUTS, repeat=2):
        forward, backward = (exchanged_cost(CUBE, SIDES, held, wanted, backward=b) for b in (False, True))
        assert forward.bytes_in("all_to_all") == backward.bytes_in("all_to_all")
        assert not backward.count("all_gather")
        assert not forward.count("all_reduce")
        if {*wanted[0], *wanted[1]} - {*held[0], *held[1]}:  # replicas get different parts
            assert backward.count("all_reduce")
