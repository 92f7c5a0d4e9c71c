"""Searches for reference cycles are seldom while laws are checked, and as often as before afterwards."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from jax import lax

from shardproof.properties.report.checking import check
from shardproof.properties.runner.garbage import YOUNG, seldom_collected

pytestmark = pytest.mark.either_end


@pytest.fixture
def thresholds() -> Iterator[None]:
    """Puts back whatever a test sets."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_the_tests_of_a_checkout_are_run_so() -> None:
    """The plugin holds searches back for the whole run."""
    assert gc.get_threshold()[0] >= YOUNG


@pytest.mark.lengthy
@pytest.mark.parametrize("before", [(700, 10, 10), (5 * YOUNG, 3, 3), (0, 10, 10)])
def test_thresholds_come_back(thresholds: None, before: tuple[int, int, int]) -> None:
    """They are raised, never lowered; a program that has switched searches off finds them off."""
    gc.set_threshold(*before)
    with seldom_collected():
        assert gc.get_threshold() == (max(YOUNG, before[0]) if before[0] else 0, *before[1:])
    assert gc.get_threshold() == before


def test_check_holds_searches_back(thresholds: None) -> None:
    """Within `check` alone."""
    seen = set()

    def gather(x: Any, axis_name: Any, **params: Any) -> Any:
        seen.add(gc.get_threshold())
        return lax.all_gather(x, axis_name, **params)

    gc.set_threshold(700, 10, 10)
    check("all_gather", gather, laws=["value"], max_examples=2)
    assert seen == {(YOUNG, 10, 10)}
    assert gc.get_threshold() == (700, 10, 10)
