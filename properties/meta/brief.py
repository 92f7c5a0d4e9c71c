"""The entries of a long list that every run tries: the first of each kind; the others are marked `lengthy`."""

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any, TypeVar

import pytest

Item = TypeVar("Item")


def first_of_each(items: Iterable[Item], kind: Callable[[Item], Hashable]) -> list[Item]:
    """The first item of every kind."""
    found: dict[Hashable, Item] = {}
    for item in items:
        found.setdefault(kind(item), item)
    return [*found.values()]


def marked(items: Iterable[Any], brief: Collection[Any]) -> list[Any]:
    """The items as parameters of a test, those that are not `brief` marked."""
    return [pytest.param(item, id=str(item), marks=() if item in brief else pytest.mark.lengthy) for item in items]
