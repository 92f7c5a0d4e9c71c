"""Contracts: how an operation is called, what it means, and what it forbids."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import jax
import numpy as np
from hypothesis import strategies as st

from shardproof.oracles.dtypes import NARROW
from shardproof.properties.cases.case import Case, Placement
from shardproof.properties.cases.strategies import PLAIN, Chains

FEATURES: dict[str, str] = {
    "any_rank": "Tokens, ids and values to be averaged may have further leading dimensions: `[B, T, V_Y]`.",
    "batch_dimensions": "The left operand has further leading dimensions.",
    "bool_sum": "Sums and means of bool count in int32, and in float32.",
    "empty_blocks": "Blocks may have no element.",
    "explained_errors": "What the contract forbids raises a ValueError naming the argument, its value and the mesh.",
    "first_senders": "The policy `sender`: the first participants fill a device's buffer.",
    "gated_experts": "Experts may be gated MLPs: `expert_weights` are then a tuple of three arrays.",
    "gates_of_all": "`over='all'`: gates are the softmax over all logits, which is not renormalised over the chosen.",
    "groups": "`axis_index_groups` of equal length, of logical indices.",
    "narrow_accumulation": "16-bit floats are added up in 16 bits: the bound on the error is that of their own dtype.",
    "invalid_indices": "Indices may be out of range.",
    "nan_logits": "A token's logits may be NaN, which counts as minus infinity.",
    "nan_tokens": "A token may be NaN, which makes its own result NaN where an expert keeps it, and no other's.",
    "negative_dimensions": "Dimensions may be counted from the back.",
    "independent_operands": "Operands may vary along different axes beside the tuple's, weights where data does not.",
    "replicated_operands": "Operands may be the same along some axes of the tuple, or all of them.",
    "sender_capacity": "`capacity_per_sender`: the most that a participant sends to an expert; it drops the others.",
    "several_layers": "A participant may have several layers, every p-th of all: its r-th is the layer r p + i.",
    "trees": "The operand may be a pytree of arrays.",
    "uneven_groups": "`axis_index_groups` of different lengths, where a result's shape does not depend on it.",
    "x64": "float64, int64, uint64 and complex128, under `jax.enable_x64`.",
}
"""Claims of implementations beyond their contract's signature; a user's function claims nothing by default."""

CONCESSIONS = frozenset({"narrow_accumulation"})
"""Features for which no more is drawn, and less is required: `all` does not include them."""

KEYWORDS = {
    "gates_of_all": "over",
    "groups": "axis_index_groups",
    "sender_capacity": "capacity_per_sender",
    "uneven_groups": "axis_index_groups",
}
"""The keyword arguments that a function must have which claims a feature, beside those of its contract."""


def of_type(kind: type) -> Callable[[Any], bool]:
    """True if a value is of just this type: a bool is no int."""
    return lambda value: type(value) is kind


@dataclass(frozen=True)
class Option:
    """A keyword argument of a case."""

    holds: Callable[[Any], bool]  # whether a value has its type
    accepts: Callable[[Case, Any], bool] = lambda case, value: True  # whether the contract allows it in a case
    values: tuple[Any, ...] = ()  # the values to draw; empty: they are drawn with the sizes

    @classmethod
    def among(cls, values: tuple[Any, ...]) -> "Option":
        """One of some values; True is not 1."""
        return cls(lambda value: any(type(value) is type(one) and value == one for one in values), values=values)


def is_dimension(case: Case, value: int, *, stacks: bool = False) -> bool:
    """True if the result has that dimension, of a product one of its two; `stacks`: one more if not tiled."""
    rank = len(case.operands[0].block) if len(case.contract.call.operands) == 1 else 2
    sides = rank + (stacks and not case.keywords["tiled"])
    return -sides <= value < sides


DIMENSION = Option(of_type(int), is_dimension)


Kept = Sequence[tuple[tuple[str, ...], int]]
"""The axis tuples along which one participant alone has a result, with its number."""


@dataclass(frozen=True)
class Call:
    """The arguments and results of an operation."""

    # the array arguments, which come first, as a tree with a name for each leaf; of several trees, with different
    # numbers of leaves, a case has one
    trees: tuple[tuple[Any, ...], ...] = (("x",),)
    # the operands that have no gradient and are not added up: indices, masks, metadata
    auxiliary: frozenset[str] = frozenset()
    # the operands that are the same on all participants, the sums of whose gradients are part of the cost
    replicated: frozenset[str] = frozenset()
    # the keyword arguments, those of features (see `KEYWORDS`) among them
    options: Mapping[str, Option] = field(default_factory=dict)
    # the names of its axis tuples, where it has several, or one of another name than `axis_name`
    roles: tuple[str, ...] = ()
    keyword_axis: bool = False  # whether `axis_name` is passed by keyword, as some functions of `jax.lax` take it
    results: Any = None  # what it returns, as a tree of names; None: an array
    # how its results are laid out, where functions of global arrays may satisfy it; None: as a law draws it
    placed: Callable[[Case], tuple[Placement, ...]] | None = None
    # of each result, the axis tuples along which one participant alone has it, with its number; None: of none
    kept: Callable[[Case], Sequence[Kept]] | None = None

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """The names of the array arguments: of several trees those of the first."""
        return tuple(jax.tree.leaves(self.trees[0]))

    @property
    def parameters(self) -> tuple[str, ...]:
        """The keyword arguments of every case."""
        return tuple(name for name in self.options if name not in KEYWORDS.values())

    @property
    def axis_names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names of the parameters for axes: those that are passed by their place, and those by keyword."""
        names = self.roles or ("axis_name",)
        return ((), names) if self.roles or self.keyword_axis else (names, ())

    def axis(self, case: Case) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments for axes in a case, by their place and by keyword: roles by their names, or `axis_name`."""
        if case.roles:
            return (), dict(case.roles)
        by_place, by_keyword = self.axis_names
        return tuple(case.axis_name for _ in by_place), dict.fromkeys(by_keyword, case.axis_name)

    def moving(self, case: Case) -> tuple[int, ...]:
        """The places of the operands that have a gradient: all but the auxiliary ones."""
        every = range(len(case.operands))
        return tuple(every) if case.tree else tuple(i for i in every if self.names(case)[i] not in self.auxiliary)

    def names(self, case: Case) -> tuple[str, ...]:
        """The names of the operands of a case; ValueError if the contract has no arguments with as many leaves."""
        return tuple(jax.tree.leaves(self._tree(len(case.operands)))) if len(self.trees) > 1 else self.operands

    @property
    def arrays(self) -> tuple[str, ...]:
        """The names of its array arguments, each of which may be a tree: `params[0]['w']` is of `params`."""
        return tuple(re.split(r"\W", jax.tree.leaves(one)[0])[0] for one in self.trees[0])

    def _tree(self, count: int) -> Any:
        """The one of the trees that has `count` leaves; ValueError if none of several has."""
        known = {len(jax.tree.leaves(tree)): tree for tree in self.trees}
        if len(known) > 1 and count not in known:
            raise ValueError(f"operands: {count} given, tree=False: expected {' or '.join(map(str, sorted(known)))}")
        return known.get(count, self.trees[0])

    def is_replicated(self, case: Case, place: int) -> bool:
        """True if the contract says that an operand is the same on all participants."""
        return not case.tree and self.names(case)[place] in self.replicated

    def arguments(self, case: Case, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """The array arguments of a call, as trees with these leaves: arrays, names, or anything else."""
        if case.tree:
            return ({"first": leaves[0], "rest": [*leaves[1:]]},)
        arguments: tuple[Any, ...] = replace_leaves(self._tree(len(leaves)), leaves)
        return arguments

    def returned(self, case: Case, leaves: Sequence[Any]) -> Any:
        """The tree that a call returns: of the results' names, or like a tree of operands."""
        return self.arguments(case, leaves)[0] if case.tree else "" if self.results is None else self.results

    def leaf(self, case: Case, index: int) -> str:
        """The name of a leaf of the results: `result`, `result leaf 1`, `result['loss']`."""
        if case.tree:
            return f"result leaf {index}"
        return "result" if self.results is None else str(jax.tree.leaves(self.results)[index])


def replace_leaves(tree: Any, leaves: Sequence[Any]) -> Any:
    """A tree with other leaves."""
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)


Blocks = np.ndarray

Results = Callable[[Case, Sequence[Blocks]], list[Blocks]]
"""Blocks of the operands to blocks of the results, one per result leaf."""

Derivative = Callable[[Case, Sequence[Blocks], Sequence[Blocks]], list[Blocks]]
"""The same of a derivative, given the tangents, or the cotangents, as well."""


@dataclass(frozen=True)
class Scope:
    """Bounds of the cases that are drawn, from the machine, the law and the implementation."""

    max_devices: int = 8  # the most devices in a mesh
    available: int = 8  # the devices to choose from, in any order
    floating: bool = False  # only dtypes with gradients, and only operations that are linear
    chains: Chains = PLAIN  # the transformations to draw
    # what the implementation supports beyond the contract's signature
    features: frozenset[str] = field(default=frozenset())
    explicit: bool = True  # whether mesh axes may be of the explicit type
    large: int = 0  # the most devices of a mesh that only the interpreter can run; 0: no such mesh
    small: bool = False  # whether sides are at most 2, as on large meshes
    sizes: tuple[int, ...] = ()  # the sizes of the mesh's axes; empty: any
    # how the function wants its arguments laid out (see `Claim`)
    layouts: tuple[Any, ...] = field(default=(), hash=False)

    def __post_init__(self) -> None:
        if not self.features <= FEATURES.keys():
            raise ValueError(f"features={sorted(self.features)}: expected some of {sorted(FEATURES)}")

    @property
    def few(self) -> bool:
        """True if sides are at most 2: on large meshes, or where they are to be small."""
        return self.large > 0 or self.small


@dataclass(frozen=True)
class Violation:
    """A way to break a contract: the argument that is wrong, and how a case becomes wrong in it."""

    argument: str  # the name of the argument, which the error's message must contain
    # valid case to strategy of wrong ones (`st.nothing()` where it does not apply)
    cases: Callable[[Case], st.SearchStrategy[Case]]
    everyone: bool = False  # whether *any* implementation must raise; otherwise only those with `explained_errors`


@dataclass(frozen=True)
class Claim:
    """A function of this project's own that claims to satisfy a contract."""

    # the device-local function, or, if it is `whole`, one of global arrays, which gets the mesh as `mesh`
    function: Callable[..., Any]
    # what it supports beyond the contract's signature; None: all that the contract has, and no concession
    features: frozenset[str] | None = None
    # whether its result is typed invariant along the axis tuple; None: as the contract's reference
    invariant: bool | None = None
    # the communication that `Expectation.parse` reads: `"permute=p-1,bytes=(p-1)*x;grad:…"`; None: unknown
    communication: str | None = None
    supports: Callable[[Case], bool] | None = None  # whether it supports a case, to be drawn for it. None: all
    whole: bool = False
    # signatures with the layouts that it takes; empty: those of the contract
    layouts: tuple[Any, ...] = field(default=(), hash=False)
    overlap: str = ""  # the overlap that `Overlap.parse` reads: `"exposed<=1/p,directions=2"`; empty: not claimed


@dataclass(frozen=True)
class Oracle:
    """The meaning of an operation, on blocks `[*mesh.sizes, *block]`, in a dtype that loses nothing that matters."""

    value: Results  # blocks of the operands to blocks of the results, one per result leaf
    # blocks of the operands, and tangent blocks of those that have a gradient, to those of the results
    pushforward: Derivative
    # blocks of the operands and cotangent blocks of the results to those of operands that have a gradient
    pullback: Derivative
    # the dtypes of the results, given those of the operands
    result_dtypes: Callable[[Case, Sequence[np.dtype]], Sequence[np.dtype]] = lambda case, dtypes: dtypes
    # whether derivatives are compared at real numbers alone, since there may be kinks at others, and numbers on
    # the way may overflow
    generic: bool = False
    differences: bool = False  # whether derivatives are differences of values, which say nothing of a kink
    # how far off it may be itself, in results and derivatives, relative to the largest number of an array, of
    # derivatives at least to 1: then their NaN is not known. Zero: as doubles
    doubt: tuple[float, float] = (0.0, 0.0)
    # the results as far off as doubles may be in which `value` is computed; None: nothing is known of that
    nearby: Results | None = None
    casts: tuple[np.dtype, ...] = ()  # the floats that its own words round to on the way, whatever its operands
    # if results are right only up to a relation: given blocks of operands and results, what is wrong, or an empty
    # text; then `value` has their shapes alone. None: they are right if they are those of `value`
    holds: Callable[[Case, Sequence[Blocks], Sequence[Blocks]], str] | None = None


def of_blocks(oracle: Any, call: Call) -> Oracle:
    """An oracle of cases made of an object with three methods, on blocks `[*mesh.sizes, *block]`.

    Each gets the mesh, the axes, and the keyword arguments: `value(operands)` gives the results, `pushforward(operands,
    tangents)` their tangents, and `pullback(operands, cotangents)` the operands' cotangents; of operands that have no
    gradient they are None.
    """

    def value(case: Case, xs: Sequence[Blocks]) -> list[np.ndarray]:
        return list(oracle.value(xs, case.mesh, case.axes, **case.keywords))

    def pushforward(case: Case, xs: Sequence[Blocks], tangents: Sequence[Blocks]) -> list[np.ndarray]:
        along: list[np.ndarray | None] = [None] * len(xs)
        for i, tangent in zip(call.moving(case), tangents, strict=True):
            along[i] = tangent
        return list(oracle.pushforward(xs, along, case.mesh, case.axes, **case.keywords))

    def pullback(case: Case, xs: Sequence[Blocks], cotangents: Sequence[Blocks]) -> list[np.ndarray]:
        pulled = oracle.pullback(xs, cotangents, case.mesh, case.axes, **case.keywords)
        return [pulled[i] for i in call.moving(case)]

    return Oracle(value, pushforward, pullback)


@dataclass(frozen=True, eq=False, repr=False)
class Contract:
    """One operation."""

    name: str  # its public name
    cases: Callable[[Scope], st.SearchStrategy[Case]]  # strategy of cases within a scope
    call: Call  # how it is called, and what it returns
    oracle: Oracle  # what it means
    invariant: bool = False  # whether the reference's result is typed invariant along the axis tuple
    violations: tuple[Violation, ...] = ()  # what it forbids
    linear: bool = False  # whether results are operands' elements, infinite ones as well, or sums of them
    differentiable: Callable[[Case], bool] | None = lambda case: True  # whether a case has derivatives; None: none has
    features: frozenset[str] = frozenset()  # those of `FEATURES` that an implementation of it may claim
    # the dtype in which sums of 16-bit floats are carried: to the end, or on a device, whose own sums may be
    # rounded before they are sent; empty: their own
    accumulator: Literal["", "float32", "float32 on a device"] = ""
    # makes the drawn global arrays of the operands fit the contract, or show more, unless they are zeros
    adapt: Callable[[Case, list[np.ndarray]], list[np.ndarray]] = lambda case, arrays: arrays
    least: Callable[[Case], int] | None = None  # the bytes that some device must receive, where that is known
    # of each whole array a usual shape, the dimension that is sharded, and its dtype where that is not free
    shapes: tuple[tuple[tuple[int, ...], int | None, str], ...] = ()
    usual: Mapping[str, Any] = field(default_factory=dict)  # the keyword arguments that go with them
    # further names in claims of communication and overlap
    sizes: Mapping[str, Callable[[Case], Any]] = field(default_factory=dict)
    # this project's own, by their names, where they are not listed elsewhere
    implementations: Mapping[str, Claim] = field(default_factory=dict)

    def __repr__(self) -> str:
        return self.name

    @property
    def whole(self) -> bool:
        """True if all implementations take global arrays: so does a user's."""
        return bool(self.implementations) and all(claim.whole for claim in self.implementations.values())

    def has_derivative(self, case: Case) -> bool:
        """True if there are derivatives in this case."""
        return self.differentiable is not None and self.differentiable(case)


def at_least_a_byte(*places: int) -> Callable[[Case], int]:
    """A lower bound where how much must be sent is not certain, but that something must be.

    That is one byte if there are several participants, nothing is empty, and each holds a part of these operands.
    """

    def least(case: Case) -> int:
        split = all(set(case.axes) <= case.operands[place].placement.axes for place in places)
        whole = all(0 not in o.block and o.dtype not in NARROW for o in case.operands)
        return int(case.group_size > 1 and split and whole)

    return least
