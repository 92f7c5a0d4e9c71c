"""Relations of mixtures of experts catch what each is for, in as many pairs of calls as a run draws, and say what."""

import re
from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from shardproof.properties.contracts import Scope
from shardproof.properties.engines import Engine
from shardproof.properties.laws.relations import RELATIONS, Differs, Relation
from shardproof.properties.laws.relations.relation import Pair
from shardproof.properties.mutants.moe_relations import PLANTED, Planted
from shardproof.properties.programs.implementations import Implementation

BY_NAME = {relation.name: relation for relation in RELATIONS}
SCOPE = Scope()
DRAWN = 27
"""A run draws 3 pairs for each of nine dispatches: what is wrong in something that they share is met so often."""

FOUND = (Phase.generate,)
SHRUNK = (Phase.generate, Phase.shrink)


def search(
    relation: Relation, implementation: Implementation, engine: Engine, phases: tuple[Phase, ...], most: int = DRAWN
) -> None:
    """Asks it of so many pairs, always the same ones."""

    @settings(
        max_examples=most, derandomize=True, database=None, deadline=None, phases=phases,
        suppress_health_check=list(HealthCheck), report_multiple_bugs=False,
    )  # fmt: skip
    @given(pair=relation.pairs(implementation, SCOPE))
    def every(pair: Pair) -> None:
        relation.check(implementation, engine, pair)

    every()


def told(relation: Relation, implementation: Implementation, engine: Engine) -> str:
    """What is said of the simplest pair that shows it."""
    with pytest.raises(Differs) as raised:
        search(relation, implementation, engine, SHRUNK, 200)
    return str(raised.value)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: f"{planted.relation}-{planted.implementation.name}")
def test_a_planted_bug_is_caught(planted: Planted, engines: Mapping[str, Engine]) -> None:
    """By its relation."""
    with pytest.raises(Differs, match=re.escape(planted.relation)):
        search(BY_NAME[planted.relation], planted.implementation, engines["simulate"], FOUND)


def test_every_relation_catches_something() -> None:
    """There is a bug for each."""
    assert {planted.relation for planted in PLANTED} == set(BY_NAME)
