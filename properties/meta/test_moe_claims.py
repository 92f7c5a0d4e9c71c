"""Claims of what layers of experts send: buffers that the worst routing fills, and rounds that it takes."""

import itertools
from collections import Counter

import numpy as np
import pytest

from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.moe.dropping import POLICIES, dispatch
from shardproof.oracles.moe.routing import Routing
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.contracts.moe import SIZES

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


def case_of(layer: tuple[int, int, int, int], capacity: int | None, policy: str) -> Case:
    """A layer of one feature."""
    participants, tokens, held, top_k = layer
    over, whole = ("ep",), ()
    operands = (
        Operand((tokens, 1), "float32", Placement((over, whole))),
        Operand((1, participants * held), "float32", Placement((whole, whole))),
        Operand((held, 1, 1), "float32", Placement((over, whole, whole))),
    )
    params = (("top_k", top_k), ("capacity", capacity), ("policy", policy))
    return Case(CONTRACTS["moe_layer"], MeshCase(over, (participants,)), "ep", operands, params)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("layer", LAYERS)
def test_buffers_have_room_for_the_worst_routing(layer: tuple[int, int, int, int], policy: str) -> None:
    """Tokens that a participant sends to one expert, or keeps, fill its buffers by some routing, and by none more.

    All gates are the same, so that of tokens the first wins.
    """
    participants, tokens, held, top_k = layer
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
        case = case_of(layer, capacity, policy)
        assert (SIZES["room"](case), SIZES["buffer"](case)) == (sent, kept), capacity
