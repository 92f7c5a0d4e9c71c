"""What a contract consists of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from hypothesis import strategies as st

from shardproof.oracles.communication import Cost
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.strategies import PLAIN, Chains
from shardproof.properties.contracts.call import Call

FEATURES: dict[str, str] = {
    "any_rank": "Tokens, ids and values to be averaged may have further leading dimensions: `[B, T, V_Y]`.",
    "batch_dimensions": "The left operand has further leading dimensions.",
    "bool_sum": "Sums and means of bool count in int32, and in float32.",
    "chunks": "`chunk`: how many pairs a participant sends to another at a time; the result does not depend on it.",
    "empty_blocks": "Blocks may have no element.",
    "explained_errors": "What the contract forbids raises a ValueError naming the argument, its value and the mesh.",
    "first_senders": "The policy `sender`: the first participants fill a device's buffer.",
    "gates_of_all": "`over='all'`: gates are the softmax over all logits, which is not renormalised over the chosen.",
    "groups": "`axis_index_groups` of equal length, of logical indices.",
    "narrow_accumulation": "16-bit floats are added up in 16 bits: the bound on the error is that of their own dtype.",
    "invalid_indices": "Indices may be out of range.",
    "nan_logits": "A token's logits may be NaN, which counts as minus infinity.",
    "nan_tokens": "A token may be NaN, which makes its own result NaN where an expert keeps it, and no other's.",
    "negative_dimensions": "Dimensions may be counted from the back.",
    "operands_apart": "Operands may vary along different axes beside those of the tuple, weights where data does not.",
    "replicated_operands": "Operands may be the same along some axes of the tuple, or all of them.",
    "sender_capacity": "`capacity_per_sender`: the most that a participant sends to an expert; it drops the others.",
    "several_layers": "A participant may have several layers, every p-th of all: its r-th is the layer r p + i.",
    "trees": "The operand may be a pytree of arrays.",
    "uneven_groups": "`axis_index_groups` of different lengths, where a result's shape does not depend on it.",
    "x64": "float64, int64, uint64 and complex128, under `jax.enable_x64`.",
}
"""What an implementation may claim beyond its contract's signature; nothing is assumed of a user's function."""

CONCESSIONS = frozenset({"narrow_accumulation"})
"""Features that draw nothing more: they ask for less, so that `all` does not mean them."""

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


@dataclass(frozen=True)
class Claim:
    """A function of this project's own that claims to satisfy a contract.

    Arguments:
        function: the device-local function, or, if it is `whole`, one of global arrays, which gets the mesh as `mesh`.
        features: what it supports beyond the contract's signature; None: all that the contract has, and no concession.
        invariant: whether its result is typed invariant along the axis tuple; None: as the contract's reference.
        communication: what it sends, as `Expectation.parse` reads it: `"permute=p-1,bytes=(p-1)*x;grad:…"`; a formula
            only where that depends on layouts or data; None: unknown.
        supports: whether it supports a case; others are not drawn for it. None: all.
        layouts: signatures that say how it wants its arguments laid out; empty: as the contract describes them.
        overlap: how it hides what it sends, as `Overlap.parse` reads it: `"exposed<=1/p,directions=2"`; empty: nothing
            is said of that.
    """

    function: Callable[..., Any]
    features: frozenset[str] | None = None
    invariant: bool | None = None
    communication: str | Communication | None = None
    supports: Callable[[Case], bool] | None = None
    whole: bool = False
    layouts: tuple[Any, ...] = field(default=(), hash=False)
    overlap: str = ""


@dataclass(frozen=True)
class Oracle:
    """What an operation means, on blocks `[*mesh.sizes, *block]`, in a dtype that loses nothing that matters.

    Arguments:
        value: blocks of the operands to blocks of the results, one per result leaf.
        pushforward: blocks of the operands, and tangent blocks of those that have a gradient, to those of the results.
        pullback: blocks of the operands and cotangent blocks of the results to those of operands that have a gradient.
        result_dtypes: the dtypes of the results, given those of the operands.
        generic: whether derivatives are compared at real numbers alone, since there may be kinks at others, and numbers
            on the way may overflow.
        doubt: how far off it may be itself, in results and derivatives, relative to the largest number of an array, of
            derivatives at least to 1: then their NaN is not known. Zero: as doubles.
        casts: the floats that it is said to be rounded to on its way, whatever its operands.
    """

    value: Results
    pushforward: Derivative
    pullback: Derivative
    result_dtypes: Callable[[Case, Sequence[np.dtype]], Sequence[np.dtype]] = lambda case, dtypes: dtypes
    generic: bool = False
    doubt: tuple[float, float] = (0.0, 0.0)
    casts: tuple[np.dtype, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class Contract:
    """One operation.

    Arguments:
        name: its public name.
        cases: strategy of cases within a scope.
        call: how it is called, and what it returns.
        oracle: what it means.
        invariant: whether the reference's result is typed invariant along the axis tuple.
        violations: what it forbids.
        linear: whether results are operands' elements, or sums of them, whatever they are: infinite ones as well.
        differentiable: whether there are such derivatives in this case; None: in none.
        features: those of `FEATURES` that an implementation of it may claim.
        accumulator: the dtype in which sums of 16-bit floats are carried: to the end, or on a device, whose own sums
            may be rounded before they are sent; empty: their own.
        adapt: makes the drawn global arrays of the operands fit the contract, or tell more, unless they are zeros.
        least: the bytes that some device must receive, where that is known.
        shapes: of each whole array a usual shape, the dimension that is sharded, and its dtype where that is not free.
        usual: the keyword arguments that go with them.
        sizes: what claims of communication and overlap may speak of besides, by its name.
        implementations: this project's own, by their names, where they are not listed elsewhere.
    """

    name: str
    cases: Callable[[Scope], st.SearchStrategy[Case]]
    call: Call
    oracle: Oracle
    invariant: bool = False
    violations: tuple[Violation, ...] = ()
    linear: bool = False
    differentiable: Callable[[Case], bool] | None = lambda case: True
    features: frozenset[str] = frozenset()
    accumulator: Literal["", "float32", "float32 on a device"] = ""
    adapt: Callable[[Case, list[np.ndarray]], list[np.ndarray]] = lambda case, arrays: arrays
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

    def has_derivative(self, case: Case) -> bool:
        """Whether there are derivatives in this case."""
        return self.differentiable is not None and self.differentiable(case)
