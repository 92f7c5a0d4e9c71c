"""Calls inside of a roomy one ask the system for no memory, however many there are around them."""

import resource
from concurrent.futures import ThreadPoolExecutor

import pytest

from shardproof.properties.runner.frames import roomy
from shardproof.properties.runner.search import find_violation

pytestmark = pytest.mark.either_end

CALLS = 1000


def called() -> None:
    """Has a frame."""


def pages(depth: int) -> int:
    """How many pages of memory the system is asked for by calls at a depth."""
    if depth:
        return pages(depth - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(CALLS):
        called()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_no_depth_asks_for_memory_in_every_call() -> None:
    """At some depth Python's own frames take a page in each call, and with room at none."""
    depths = range(300)
    with ThreadPoolExecutor(1) as apart:  # a thread has frames of its own
        assert max(apart.map(pages, depths)) >= CALLS
        assert max(apart.map(roomy(pages), depths)) < CALLS / 10


def test_what_is_run_for_long_has_room(request: pytest.FixtureRequest) -> None:
    """A test of a checkout, and the search that all else goes through."""
    for function in (request.node.runtest, find_violation):
        assert function.__code__.co_stacksize > CALLS


def test_a_roomy_function_is_itself() -> None:
    """Its name, what it says of itself, its results and its errors."""

    @roomy
    def half(x: int, *, of: int = 2) -> float:
        """A part."""
        return x / of

    assert (half.__name__, half.__doc__, half(3), half(3, of=3)) == ("half", "A part.", 1.5, 1)
    with pytest.raises(ZeroDivisionError):
        half(3, of=0)
