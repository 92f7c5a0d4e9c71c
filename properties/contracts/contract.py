"""What a contract consists of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardproof.oracles.communication import Cost
from shardproof.properties.cases.case import Case, Placement
from shardproof.properties.cases.strategies import PLAIN, Chains
from shardproof.properties.contracts.features import FEATURES
from shardproof.properties.contracts.trees import arguments_in, names_of, of_leaves, refilled

Blocks = np.ndarray

Communication = Callable[[Case, bool], Cost]
"""The cost of a case, forward (`False`) or of its gradient alone (`True`), where it depends on layouts or on data."""

Results = Callable[[Case, Sequence[Blocks]], list[Blocks]]
"""Blocks of the operands to blocks of the results, one per result leaf."""

Derivative = Callable[[Case, Sequence[Blocks], Sequence[Blocks]], list[Blocks]]
"""The same of a derivative, given the tangents, or the cotangents, as well."""


@dataclass(frozen=True)
class Scope:
    """What cases may use: bounds that come from the machine, the law and the implementation.

    Arguments:
        max_devices: the most devices in a mesh.
        available: the devices to choose from, in any order.
        floating: only dtypes with gradients, and only operations that are linear.
        chains: the transformations to draw.
        features: what the implementation supports beyond the contract's signature.
        explicit: whether mesh axes may be of the explicit type.
        large: the most devices of a mesh that no engine but the simulator can serve; 0: none such.
        sizes: the sizes of the mesh's axes, where only such meshes are asked for.
        whole: whether the function takes global arrays.
        layouts: how the function wants its arguments laid out (see `Claim`).
    """

    max_devices: int = 8
    available: int = 8
    floating: bool = False
    chains: Chains = PLAIN
    features: frozenset[str] = field(default=frozenset())
    explicit: bool = True
    large: int = 0
    sizes: tuple[int, ...] = ()
    whole: bool = False
    layouts: tuple[Any, ...] = field(default=(), hash=False)

    def __post_init__(self) -> None:
        if not self.features <= FEATURES.keys():
            raise ValueError(f"features={sorted(self.features)}: expected some of {sorted(FEATURES)}")


@dataclass(frozen=True)
class Violation:
    """A way to break a contract: the argument that is wrong, and how a case becomes wrong in it.

    Arguments:
        argument: the name of the argument, which the error's message must contain.
        cases: valid case to strategy of wrong ones (`st.nothing()` where it does not apply).
        everyone: whether *any* implementation must raise; otherwise only those with `explained_errors`.
    """

    argument: str
    cases: Callable[[Case], st.SearchStrategy[Case]]
    everyone: bool = False


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


@dataclass(frozen=True)
class Claim:
    """A function of this project's own that claims to satisfy a contract.

    Arguments:
        function: the device-local function, or, if it is `whole`, one of global arrays, which gets the mesh as `mesh`.
        features: what it supports beyond the contract's signature.
        invariant: whether its result is typed invariant along the axis tuple; None: as the contract's reference.
        communication: what it sends, as `Expectation.parse` reads it: `"permute=p-1,bytes=(p-1)*x;grad:…"`; a formula
            only where that depends on layouts or data; None: unknown.
        supports: whether it supports a case; others are not drawn for it. None: all.
        layouts: signatures that say how it wants its arguments laid out; empty: as the contract describes them.
        overlap: how it hides what it sends, as `Overlap.parse` reads it: `"exposed<=1/p,directions=2"`; empty: nothing
            is said of that.
    """

    function: Callable[..., Any]
    features: frozenset[str] = frozenset()
    invariant: bool | None = None
    communication: str | Communication | None = None
    supports: Callable[[Case], bool] | None = None
    whole: bool = False
    layouts: tuple[Any, ...] = field(default=(), hash=False)
    overlap: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class Contract:
    """One operation.

    Arguments:
        name: its public name.
        cases: strategy of cases within a scope.
        oracle: blocks of the operands to blocks of the results, one per result leaf.
        pushforward: blocks of the operands, and tangent blocks of those that have a gradient, to those of the results.
        pullback: blocks of the operands and cotangent blocks of the results to those of operands that have a gradient.
        invariant: whether the reference's result is typed invariant along the axis tuple.
        parameters: the keyword arguments, with defaults where they have one.
        violations: what it forbids.
        operands: the names of the array arguments, which come first.
        differentiable: whether there are such derivatives in this case.
        terms: how many terms a result element adds up in this case; 1 if data is only moved.
        divides: whether a division follows the sum (a mean).
        quotient: whether it is by a sum of operands: derivatives are asked for where results are finite.
        degree: of how many operands' elements each term is the product.
        partial: how many terms each participant adds up by itself, before the sums are sent.
        stages: how often a result is rounded to the operands' dtype on its way.
        result_dtypes: the dtypes of the results, given those of the operands.
        features: those of `FEATURES` that an implementation of it may claim.
        accumulator: the dtype in which terms of a dtype are added up.
        adapt: makes the drawn global arrays of the operands fit the contract, or tell more, unless they are zeros.
        auxiliary: the operands that have no gradient and are not added up: indices, masks, metadata.
        alike: the operands that are the same on all participants, the sums of whose gradients are part of the cost.
        reads: how often, at most, one device's result reads an element of an operand, in this case.
        even: whether dividing the sums, if anything does, is exact: by a power of two.
        local: whether every device computes its own result: then only a function of global arrays gets `axis_name`.
        keyword_axis: whether `axis_name` is passed by keyword, as some functions of `jax.lax` take it.
        options: what its keyword arguments may be, where they are not listed elsewhere.
        weighs: whether terms are weighed by factors that are no arguments: derivatives are along finite directions.
        nonlinear: whether it is no sum of products: its implementations are run in double precision, and nothing is
            compared bit for bit; then `degree` is how many factors the data leaves room for.
        doubt: of one that is nonlinear, how far off the oracle may be itself, in results and derivatives, relative to
            the largest number of an array, of derivatives at least to 1: then their NaN is not known. Zero: as doubles.
        casts: of one that is nonlinear, the floats that it is said to be rounded to on its way, whatever its operands.
        finite: of one that is nonlinear, whether results are finite where mathematics is, whatever overflows before.
        decided: of one that is nonlinear, whether its data leave nothing that is compared or ordered to roundings.
        roles: the names of its axis tuples, where it has several, or one of another name than `axis_name`.
        tree: what its arguments are, as a tree whose leaves are the names in `operands`; None: one after the other.
        deeper: the trees of cases with other numbers of leaves.
        results: what it returns, as a tree of names; None: an array.
        has_gradient: whether there are derivatives in any case.
        generic: whether derivatives are compared at real numbers alone, since there may be kinks at others.
        placed: how its results are laid out, where functions of global arrays may satisfy it; None: as a law draws it.
        kept: of each result, the axis tuples along which one participant alone has it, with its number; None: of none.
        least: the bytes that some device must receive, where that is known.
        shapes: of each whole array a usual shape, the dimension that is sharded, and its dtype where that is not free.
        usual: the keyword arguments that go with them.
        sizes: what claims of communication and overlap may speak of besides, by its name.
        implementations: this project's own, by their names, where they are not listed elsewhere.
    """

    name: str
    cases: Callable[[Scope], st.SearchStrategy[Case]]
    oracle: Results
    pushforward: Derivative
    pullback: Derivative
    invariant: bool
    parameters: tuple[str, ...]
    violations: tuple[Violation, ...]
    operands: tuple[str, ...] = ("x",)
    differentiable: Callable[[Case], bool] = lambda case: True
    terms: Callable[[Case], int] = lambda case: 1
    divides: Callable[[Case], bool] = lambda case: False
    quotient: bool = False
    degree: int = 1
    partial: Callable[[Case], int] = lambda case: 1
    stages: int = 1
    result_dtypes: Callable[[Case, Sequence[np.dtype]], Sequence[np.dtype]] = lambda case, dtypes: dtypes
    features: frozenset[str] = frozenset()
    accumulator: Callable[[np.dtype], np.dtype] = lambda dtype: dtype
    adapt: Callable[[Case, list[np.ndarray]], list[np.ndarray]] = lambda case, arrays: arrays
    auxiliary: frozenset[str] = frozenset()
    alike: frozenset[str] = frozenset()
    reads: Callable[[Case], int] = lambda case: 1
    even: Callable[[Case], bool] = lambda case: True
    local: bool = False
    keyword_axis: bool = False
    options: Mapping[str, Option] = field(default_factory=dict)
    weighs: bool = False
    nonlinear: bool = False
    doubt: tuple[float, float] = (0.0, 0.0)
    casts: tuple[np.dtype, ...] = ()
    finite: bool = True
    decided: bool = False
    roles: tuple[str, ...] = ()
    tree: Any = None
    deeper: tuple[Any, ...] = ()
    results: Any = None
    has_gradient: bool = True
    generic: bool = False
    placed: Callable[[Case], tuple[Placement, ...]] | None = None
    kept: Callable[[Case], Sequence[Sequence[tuple[tuple[str, ...], int]]]] | None = None
    least: Callable[[Case], int] | None = None
    shapes: tuple[tuple[tuple[int, ...], int | None, str], ...] = ()
    usual: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, Callable[[Case], Any]] = field(default_factory=dict)
    implementations: Mapping[str, Claim] = field(default_factory=dict)

    def __repr__(self) -> str:
        return self.name

    @property
    def whole(self) -> bool:
        """Whether all that claim to satisfy it take global arrays: so does what a user brings."""
        return bool(self.implementations) and all(claim.whole for claim in self.implementations.values())

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
