"""Relations of mixtures of experts catch what each is for, in as many pairs of calls as two runs draw, and say what."""

import re
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from shardproof.oracles.mesh import MeshCase, as_axes
from shardproof.oracles.moe.dropping import POLICIES
from shardproof.oracles.moe.routing import GATES, route
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import Engine
from shardproof.properties.laws.relations import RELATIONS, Differs, Relation
from shardproof.properties.laws.relations.call import Call, Place
from shardproof.properties.laws.relations.operands import APART, Kind, routers, tokens_for
from shardproof.properties.laws.relations.relation import Pair
from shardproof.properties.laws.relations.tokens import pair_of
from shardproof.properties.mutants.moe import Layer
from shardproof.properties.mutants.moe_dropping import moe_with_room_for_each_sender
from shardproof.properties.mutants.moe_relations import PLANTED, SENDERS, Planted
from shardproof.properties.programs.implementations import OPERATIONS, Implementation
from shardproof.properties.suite.test_moe_relations import SPOILING

BY_NAME = {relation.name: relation for relation in RELATIONS}
SCOPE = Scope()
DRAWN = 108
"""A run draws 3 pairs for each of nine dispatches: what is wrong in something that they share is met in four runs."""

RIGHT = Implementation("moe_layer", "right", Layer())


def search(relation: Relation, implementation: Implementation, engine: Engine, most: int = DRAWN) -> None:
    """Asks it of so many pairs, always the same ones."""

    @settings(
        max_examples=most, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck), report_multiple_bugs=False,
    )  # fmt: skip
    @given(pair=relation.pairs(implementation, SCOPE))
    def every(pair: Pair) -> None:
        relation.check(implementation, engine, pair)

    every()


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: f"{planted.relation}-{planted.implementation.name}")
def test_a_planted_bug_is_caught(planted: Planted, engines: Mapping[str, Engine]) -> None:
    """By its relation."""
    with pytest.raises(Differs, match=re.escape(planted.relation)):
        search(BY_NAME[planted.relation], planted.implementation, engines["simulate"])


def test_every_relation_catches_something() -> None:
    """There is a bug for each."""
    assert {planted.relation for planted in PLANTED} == set(BY_NAME)


@pytest.mark.parametrize("relation", [one for one in RELATIONS if one.name != "a token of NaN"], ids=lambda r: r.name)
def test_a_right_layer_is_not_reported(relation: Relation, engines: Mapping[str, Engine]) -> None:
    """The one that planted bugs change; it multiplies NaN by zero, which is one of them."""
    search(relation, RIGHT, engines["simulate"], 10)


@pytest.mark.parametrize("name", SPOILING)
def test_a_token_of_nan_spoils_others(name: str, engines: Mapping[str, Engine]) -> None:
    """Those that are left out of that relation are the ones of which it does not hold."""
    (implementation,) = (one for one in OPERATIONS if str(one) == name)
    with pytest.raises(Differs, match="a token of NaN"):
        search(BY_NAME["a token of NaN"], implementation, engines["simulate"])


TEXT = """\
moe_layer[moe_with_room_for_each_sender]: another mesh: token 2 differs: 1 of 4 do

  token 2:                                [1 0]
  in the other call, as token 2:          [0 0]
  largest difference that roundings make: 2.0e-06

  expected: results do not depend on the mesh
  call: 4 tokens, 2 experts, top_k=1, capacity=1, policy='position', on mesh (dp=2), over 'dp'
  other call: on mesh (tp=1, dp=1), over ('tp',)
  engine: simulate"""


def test_a_failure_says_what_is_wrong(engines: Mapping[str, Engine]) -> None:
    """It names the relation, the layer, both calls, and the first token that differs, with both results."""
    router = np.array([[2, 0], [0, 0]], np.float32)
    experts = np.zeros((2, 2, 2), np.float32)
    experts[:, 1] = np.eye(2)
    here, there = Place(MeshCase(("dp",), (2,)), "dp"), Place(MeshCase(("tp", "dp"), (1, 1)), ("tp",))
    options = {"top_k": 1, "capacity": 1, "policy": "position"}
    one, other = (Call(place, options, np.ones((4, 2), np.float32), router, experts) for place in (here, there))
    layer = moe_with_room_for_each_sender
    with pytest.raises(Differs) as raised:
        BY_NAME["another mesh"].check(
            Implementation("moe_layer", layer.__name__, layer),
            engines["simulate"],
            pair_of(one, other, f"on {there}"),
        )
    assert str(raised.value) == TEXT


@pytest.mark.either_end
@pytest.mark.parametrize(("top_k", "over"), [(1, "all"), (2, "chosen"), (3, "all")])
def test_no_choice_depends_on_roundings(top_k: int, over: str) -> None:
    """Of tokens that are drawn, logits are exact in float32, no two of one are equal, and no two gates are near."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        router = routers(rng, 3, 6)
        tokens = tokens_for(rng, router, 24, Kind(), top_k=top_k, over=over)
        exact = tokens.astype(np.float64) @ router
        assert ((tokens @ router) == exact).all()
        assert (np.diff(np.sort(exact)) > 0).all()
        routing = route(exact, top_k, over=over)
        for expert in range(6):
            gates = np.sort(routing.gates[routing.experts == expert])
            assert (np.diff(gates) > APART * gates[1:]).all()


@pytest.mark.lengthy
@pytest.mark.either_end
def test_what_padding_is_for_is_drawn() -> None:
    """All policies and gates, both kinds of capacity, axes beside and in another order; shards without tokens."""
    seen = Counter[str]()

    @settings(max_examples=200, derandomize=True, database=None, phases=[Phase.generate])
    @given(pair=BY_NAME["padding"].pairs(Implementation("moe_layer", "right", Layer(), SENDERS), SCOPE))
    def every(pair: Pair) -> None:
        options, place = pair.calls[0].options, pair.calls[0].place
        rows, shown = np.arange(len(pair.calls[1].tokens)), {*pair.rows[1].tolist()}
        without = [shard for shard in np.split(rows, place.shards) if not {*shard.tolist()} & shown]
        dropped = {*pair.details["padding"][~pair.details["kept"]].tolist()}
        seen[str(options["policy"])] += 1
        seen[str(options["over"])] += 1
        seen["capacity"] += options["capacity"] is not None
        seen["capacity_per_sender"] += options["capacity_per_sender"] is not None
        seen["axes beside"] += set(as_axes(place.expert)) != set(place.mesh.axis_names)
        seen["another order"] += not place.in_mesh_order
        seen["a shard without tokens"] += bool(without)
        seen["all of whose rows are dropped"] += any({*shard.tolist()} <= dropped for shard in without)

    every()
    assert {*POLICIES, *GATES} < seen.keys()
    assert all(count > 5 for count in seen.values()), seen
