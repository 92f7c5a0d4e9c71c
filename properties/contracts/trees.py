"""Trees of dicts, lists and tuples whose leaves are names: what the arguments and the results of a contract are."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def refilled(tree: Any, leaves: Sequence[Any]) -> Any:
    """A tree of dicts, lists and tuples, with other leaves in the order of `names_of`."""
    return _filled(tree, iter(leaves))


def _filled(tree: Any, left: Iterator[Any]) -> Any:
    # no function inside of the other: what refers to itself keeps all leaves until Python looks for such cycles
    if isinstance(tree, Mapping):
        return {key: _filled(value, left) for key, value in sorted(tree.items())}
    if isinstance(tree, list | tuple):
        return type(tree)([_filled(value, left) for value in tree])
    return next(left)


def names_of(tree: Any) -> list[str]:
    """The leaves of a tree of dicts, lists and tuples, the values of a dict in the order of its keys, as JAX has it."""
    if isinstance(tree, Mapping):
        return [name for _, value in sorted(tree.items()) for name in names_of(value)]
    if isinstance(tree, list | tuple):
        return [name for value in tree for name in names_of(value)]
    return [tree]


def arguments_in(tree: Sequence[Any]) -> tuple[str, ...]:
    """What the arguments are called whose trees these are: `params` is that of `params[0]['w']`."""
    return tuple(re.split(r"\W", names_of(argument)[0])[0] for argument in tree)


def of_leaves(trees: Sequence[Any], count: int) -> Any:
    """That of several trees which has so many leaves.

    Raises:
        ValueError: if none has.
    """
    known = {len(names_of(tree)): tree for tree in trees}
    if count not in known:
        raise ValueError(f"operands: {count} given, tree=False: expected {' or '.join(map(str, sorted(known)))}")
    return known[count]
