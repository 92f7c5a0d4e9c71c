"""Draws of a strategy, how soon something is drawn, and what it shrinks to, the same in every run."""

from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from shardproof.oracles.dtypes import ALL
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.strategies import meshes

T = TypeVar("T")
EXAMPLES = 500
TWO_BY_TWO = MeshCase(("dp", "tp"), (2, 2))
TWO_BY_FOUR = MeshCase(("dp", "tp"), (2, 4))
NUMBERS = tuple(name for name in ALL if name != "bool")
# one seed for all, so that what appears within 500 draws does so in every run
FIXED = settings(
    database=None, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), max_examples=EXAMPLES
)


def drawn(strategy: st.SearchStrategy[T], count: int = EXAMPLES) -> list[T]:
    """The first `count` draws, which are the same in every run."""
    values: list[T] = []

    @settings(FIXED, max_examples=count, phases=[Phase.generate])
    @given(strategy)
    def collect(value: T) -> None:
        values.append(value)

    collect()
    return values


def smallest(strategy: st.SearchStrategy[T], condition: Callable[[T], bool] = lambda value: True) -> T:
    """The value that the strategy shrinks to under a condition."""
    return find(strategy, condition, settings=settings(FIXED, max_examples=10 * EXAMPLES))


def one(strategy: st.SearchStrategy[T], condition: Callable[[T], bool]) -> T:
    """Something that the strategy draws under a condition, as it is drawn."""
    return find(strategy, condition, settings=settings(FIXED, max_examples=40 * EXAMPLES, phases=[Phase.generate]))


def meshes_with(
    draw_more: Callable[[MeshCase], st.SearchStrategy[T]], **bounds: Any
) -> st.SearchStrategy[tuple[MeshCase, T]]:
    """Meshes, each with something drawn for it."""
    return meshes(**bounds).flatmap(lambda mesh: st.tuples(st.just(mesh), draw_more(mesh)))
