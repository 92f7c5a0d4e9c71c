"""What holds of two calls of a mixture of experts, for every dispatch, and for layers of global arrays.

In the interpreter every dispatch gets cases of every relation; compiled by XLA every relation gets some of any
dispatch.
"""

from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardproof.properties.contracts import Scope
from shardproof.properties.engines import Engine
from shardproof.properties.laws.relations import RELATIONS, Relation
from shardproof.properties.programs.implementations import OPERATIONS, Implementation
from shardproof.properties.runner.draws import but_the_simplest

ROUTED = [one for one in OPERATIONS if one.form == "routed"]
GLOBAL = [one for one in OPERATIONS if one.contract == "global_moe_layer"]
SPOILING = {
    "moe_layer[dense]": "zeros multiply tokens",
    "moe_layer[sorted]": "zeros multiply them in `ragged_dot`'s rule",
    "global_moe_layer[sorted]": "as in the one of blocks",
}
"""Dispatches in whose gradient of experts a token that is NaN is in others' as well, and why."""

COMPILED = [one for one in [*ROUTED, *GLOBAL] if one.name != "ragged"]
"""XLA:CPU compiles no `ragged_all_to_all` (see `known_defects/ragged_all_to_all_cpu.py`)."""

INTERPRETED = Scope(max_devices=12, available=12)
"""What the interpreter runs needs no device."""

PAIRS = settings(
    max_examples=max(1, settings().max_examples // 200),
    suppress_health_check=[*settings().suppress_health_check, HealthCheck.filter_too_much],
    report_multiple_bugs=False,
)
"""How many pairs of calls are drawn, of each relation on XLA, and interpreted of each dispatch as well."""


def is_served(relation: Relation, implementation: Implementation) -> bool:
    """Whether a relation holds of an implementation."""
    return relation.name != "a token of NaN" or str(implementation) not in SPOILING


SERVED = [
    pytest.param(relation, one, id=f"{relation.name.replace(' ', '_')}-{one}")
    for relation in RELATIONS
    for one in [*ROUTED, *GLOBAL]
    if is_served(relation, one)
]


@pytest.mark.parametrize(("relation", "implementation"), SERVED)
@PAIRS
@given(data=st.data())
def test_relation(
    relation: Relation, implementation: Implementation, engines: Mapping[str, Engine], data: st.DataObject
) -> None:
    """A relation holds of a dispatch, interpreted."""
    pair = data.draw(but_the_simplest(relation.pairs(implementation, INTERPRETED)), label=relation.name)
    relation.check(implementation, engines["simulate"], pair)


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda relation: relation.name.replace(" ", "_"))
@PAIRS
@given(data=st.data())
def test_relation_compiled(
    relation: Relation, scope: Scope, engines: Mapping[str, Engine], data: st.DataObject
) -> None:
    """A relation holds of a dispatch, compiled."""
    served = [one for one in COMPILED if is_served(relation, one)]
    implementation = data.draw(st.sampled_from(served), label="dispatch")
    pair = data.draw(but_the_simplest(relation.pairs(implementation, scope)), label=relation.name)
    relation.check(implementation, engines["xla"], pair)
