"""Strategies that others draw from cost no strategy more: they draw the same, and few are made for a case."""

from typing import Any

import pytest
from hypothesis import strategies as st

from shardproof.properties.cases.operand import Placement
from shardproof.properties.cases.strategies.making import integers, sampled
from shardproof.properties.contracts import CONTRACTS, Scope
from shardproof.properties.contracts.drawing import placements
from shardproof.properties.laws.law import LAWS
from shardproof.properties.meta.drawn import TWO_BY_FOUR, drawn, smallest
from shardproof.properties.report.checking import user_implementation

pytestmark = pytest.mark.either_end


@st.composite
def placed(draw: st.DrawFn) -> Placement:
    """A placement, as a part of another strategy draws it."""
    return placements.within(draw, TWO_BY_FOUR, 2)


def test_within_another_the_same_is_drawn() -> None:
    """And the same is the simplest."""
    alone = placements(TWO_BY_FOUR, 2)
    assert drawn(placed(), 60) == drawn(alone, 60)
    assert smallest(placed()) == smallest(alone)


def test_what_is_sampled_is_made_once_for_its_options() -> None:
    """Not for those that are merely equal."""
    assert sampled((0, 1)) is sampled((0, 1))
    for one, other in (((False, True), (0, 1)), ((-0.0, 1.0), (0.0, 1.0)), (((True, 2),), ((1, 2),))):
        assert sampled(one) is not sampled(other)
    assert {type(value) for value in drawn(sampled((False, True)), 10)} == {bool}
    assert integers(3, 0, 7) is integers(3, 0, 7)
    assert {len(value) for value in drawn(integers(3, 0, 7), 10)} == {3}


@pytest.mark.parametrize("contract", CONTRACTS)
def test_few_strategies_are_made_for_a_case(contract: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypothesis validates each: at most nine, which is less than a case has axes, specs and options."""
    made = 0
    before = st.SearchStrategy.__init__

    def counted(strategy: Any) -> None:
        nonlocal made
        made += 1
        before(strategy)

    cases = LAWS["value"].cases(user_implementation(contract, print, ["all"]), Scope())
    drawn(cases, 20)
    monkeypatch.setattr(st.SearchStrategy, "__init__", counted)
    count = len(drawn(cases, 40))
    assert made <= 9 * count
