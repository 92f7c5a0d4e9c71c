"""Strategies that are made once: Hypothesis validates each one, and leaves garbage in cycles behind."""

from collections.abc import Callable, Sequence
from functools import lru_cache, update_wrapper
from typing import Concatenate, Generic, ParamSpec, TypeVar

from hypothesis import strategies as st

P = ParamSpec("P")
Drawn = TypeVar("Drawn")


class Composite(Generic[P, Drawn]):
    """As `st.composite`; `within(draw, …)` draws what `draw(strategy(…))` does, without making a strategy."""

    def __init__(self, steps: Callable[Concatenate[st.DrawFn, P], Drawn]) -> None:
        self._steps = steps
        self._strategy = st.composite(steps)
        update_wrapper(self, steps)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> st.SearchStrategy[Drawn]:
        """The strategy."""
        return self._strategy(*args, **kwargs)

    def within(self, draw: st.DrawFn, *args: P.args, **kwargs: P.kwargs) -> Drawn:
        """One value, drawn as a part of another strategy."""
        return self._steps(draw, *args, **kwargs)


def sampled(options: Sequence[Drawn]) -> st.SearchStrategy[Drawn]:
    """As `st.sampled_from`, made once for each sequence of hashable options."""
    return _sampled(tuple(options), repr(options))


@lru_cache(maxsize=4096)
def _sampled(options: tuple[Drawn, ...], shown: str) -> st.SearchStrategy[Drawn]:
    """Cached by their texts as well: `False` equals 0, and -0.0 equals 0.0."""
    return st.sampled_from(options)


@lru_cache
def integers(count: int, least: int, most: int) -> st.SearchStrategy[tuple[int, ...]]:
    """`count` integers of a range."""
    return st.tuples(*[st.integers(least, most)] * count)
