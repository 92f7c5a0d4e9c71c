"""How an operation is called, and what it returns."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardproof.properties.cases.case import Case, Placement

KEYWORDS = {
    "chunks": "chunk",
    "gates_of_all": "over",
    "groups": "axis_index_groups",
    "sender_capacity": "capacity_per_sender",
    "uneven_groups": "axis_index_groups",
}
"""The keyword arguments that a function must have which claims a feature, beside those of its contract."""


def of_type(kind: type) -> Callable[[Any], bool]:
    """Whether a value is of just this type: a bool is no int."""
    return lambda value: type(value) is kind


@dataclass(frozen=True)
class Option:
    """A keyword argument, as it may stand in a case.

    Arguments:
        holds: whether a value has its type.
        accepts: whether the contract allows it in a case.
    """

    holds: Callable[[Any], bool]
    accepts: Callable[[Case, Any], bool] = lambda case, value: True


def is_dimension(case: Case, value: int, *, stacks: bool = False) -> bool:
    """Whether a result has it: a product's two dimensions are meant, and one more where blocks are stacked."""
    rank = len(case.operands[0].block) if len(case.contract.call.operands) == 1 else 2
    sides = rank + (stacks and not case.keywords["tiled"])
    return -sides <= value < sides


DIMENSION = Option(of_type(int), is_dimension)


@dataclass(frozen=True)
class Call:
    """How an operation is called, and what it returns.

    Arguments:
        operands: the names of the array arguments, which come first.
        auxiliary: the operands that have no gradient and are not added up: indices, masks, metadata.
        alike: the operands that are the same on all participants, the sums of whose gradients are part of the cost.
        options: the keyword arguments, those of features (see `KEYWORDS`) among them.
        roles: the names of its axis tuples, where it has several, or one of another name than `axis_name`.
        local: whether every device computes its own result: then only a function of global arrays gets `axis_name`.
        keyword_axis: whether `axis_name` is passed by keyword, as some functions of `jax.lax` take it.
        tree: what its arguments are, as a tree whose leaves are the names in `operands`; None: one after the other.
        deeper: the trees of cases with other numbers of leaves.
        results: what it returns, as a tree of names; None: an array.
        placed: how its results are laid out, where functions of global arrays may satisfy it; None: as a law draws it.
        kept: of each result, the axis tuples along which one participant alone has it, with its number; None: of none.
    """

    operands: tuple[str, ...] = ("x",)
    auxiliary: frozenset[str] = frozenset()
    alike: frozenset[str] = frozenset()
    options: Mapping[str, Option] = field(default_factory=dict)
    roles: tuple[str, ...] = ()
    local: bool = False
    keyword_axis: bool = False
    tree: Any = None
    deeper: tuple[Any, ...] = ()
    results: Any = None
    placed: Callable[[Case], tuple[Placement, ...]] | None = None
    kept: Callable[[Case], Sequence[Sequence[tuple[tuple[str, ...], int]]]] | None = None

    @property
    def parameters(self) -> tuple[str, ...]:
        """The keyword arguments of every case."""
        return tuple(name for name in self.options if name not in KEYWORDS.values())

    @property
    def axis_names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What the parameters for axes are called: those that are passed by their place, and those by keyword."""
        names = self.roles or (() if self.local else ("axis_name",))
        return ((), names) if self.roles or self.keyword_axis else (names, ())

    def axis(self, case: Case, *, whole: bool = False) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """How axis names are passed in a case: by their place, by keyword, or not at all; roles by their names."""
        if case.roles:
            return (), dict(case.roles)
        by_place, by_keyword = (("axis_name",), ()) if whole and self.local else self.axis_names
        return tuple(case.axis_name for _ in by_place), dict.fromkeys(by_keyword, case.axis_name)

    def moving(self, case: Case) -> tuple[int, ...]:
        """The places of the operands that have a gradient: all but the auxiliary ones."""
        every = range(len(case.operands))
        return tuple(every) if case.tree else tuple(i for i in every if self.names(case)[i] not in self.auxiliary)

    def names(self, case: Case) -> tuple[str, ...]:
        """What the operands of a case are called; ValueError if the contract has no arguments of so many leaves."""
        trees = (self.tree, *self.deeper)
        return tuple(names_of(of_leaves(trees, len(case.operands)))) if self.deeper else self.operands

    @property
    def arrays(self) -> tuple[str, ...]:
        """What its array arguments are called, each of which may be a tree."""
        return self.operands if self.tree is None else arguments_in(self.tree)

    def has_alike(self, case: Case, place: int) -> bool:
        """Whether an operand is the same on all participants by what the contract says."""
        return not case.tree and self.operands[place] in self.alike

    def arguments(self, case: Case, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """The array arguments of a call, made of what stands for each operand: arrays, names, whatever."""
        if case.tree:
            return ({"first": leaves[0], "rest": [*leaves[1:]]},)
        tree = of_leaves((self.tree, *self.deeper), len(leaves)) if self.deeper else self.tree
        return tuple(leaves) if tree is None else tuple(refilled(tree, leaves))

    def returned(self, case: Case, leaves: Sequence[Any]) -> Any:
        """What a call returns that gets these leaves, as a tree: of the results' names, but for a tree of operands."""
        return self.arguments(case, leaves)[0] if case.tree else "" if self.results is None else self.results

    def leaf(self, case: Case, index: int) -> str:
        """What a leaf of the results is called: `result`, `result leaf 1`, `result['loss']`."""
        if case.tree:
            return f"result leaf {index}"
        return "result" if self.results is None else names_of(self.results)[index]


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
