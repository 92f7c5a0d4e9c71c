"""What a contract consists of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from properties.cases import Case

Blocks = np.ndarray
FEATURES = frozenset(
    {
        "batch_dimensions",
        "bool_sum",
        "explained_errors",
        "groups",
        "negative_dimensions",
        "replicated_operands",
        "trees",
    }
)
"""What an implementation may serve beyond the contract's signature; nothing is assumed of a user's function."""


@dataclass(frozen=True)
class Scope:
    """What cases may use: bounds that come from the machine, the law and the implementation.

    Arguments:
        max_devices: the most devices in a mesh.
        available: the devices to choose from, in any order.
        floating: only dtypes with gradients, and only operations that are linear.
        arounds: the transformations to draw from.
        features: what the implementation serves beyond the contract's signature.
        explicit: whether mesh axes may be of the explicit type.
        large: the most devices of a mesh that no engine but the simulator can serve; 0: none such.
        sizes: the sizes of the mesh's axes, where only such meshes are asked for.
    """

    max_devices: int = 8
    available: int = 8
    floating: bool = False
    arounds: tuple[str, ...] = ("jit",)
    features: frozenset[str] = field(default=frozenset())
    explicit: bool = True
    large: int = 0
    sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.features <= FEATURES:
            raise ValueError(f"features={sorted(self.features)}: expected some of {sorted(FEATURES)}")


@dataclass(frozen=True)
class Violation:
    """A way to break a contract: the argument that is wrong, and how a case becomes wrong in it.

    Arguments:
        argument: the name of the argument, which the error's message must contain.
        cases: valid case to strategy of wrong ones (`st.nothing()` where it does not apply).
        everyone: whether *any* implementation must raise; otherwise only those with the feature
            `explained_errors`.
    """

    argument: str
    cases: Callable[[Case], st.SearchStrategy[Case]]
    everyone: bool = False


@dataclass(frozen=True)
class Contract:
    """One operation.

    Arguments:
        name: its public name.
        cases: strategy of cases within a scope.
        oracle: blocks of the operands to blocks of the results, one per result leaf.
        pushforward: blocks and tangent blocks of the operands to tangent blocks of the results.
        pullback: blocks of the operands and cotangent blocks of the results to cotangent blocks of the operands.
        differentiable: whether there are such derivatives in this case.
        terms: how many terms a result element adds up in this case; 1 if data is only moved.
        divides: whether a division follows the sum in this case (a mean).
        invariant: whether the reference's result is typed invariant along the axis tuple.
        parameters: the keyword arguments, with defaults where they have one.
        violations: what it forbids.
        operands: the names of the array arguments, which come first.
        degree: of how many operands' elements each term is the product.
        stages: how often a result is rounded to the operands' dtype on its way.
        accumulator: the dtype in which terms of a dtype are added up.
        adapt: changes the drawn global arrays of the operands into such as the operation is checked on.
    """

    name: str
    cases: Callable[[Scope], st.SearchStrategy[Case]]
    oracle: Callable[[Case, Sequence[Blocks]], list[Blocks]]
    pushforward: Callable[[Case, Sequence[Blocks], Sequence[Blocks]], list[Blocks]]
    pullback: Callable[[Case, Sequence[Blocks], Sequence[Blocks]], list[Blocks]]
    differentiable: Callable[[Case], bool]
    terms: Callable[[Case], int]
    divides: Callable[[Case], bool]
    invariant: bool
    parameters: tuple[str, ...]
    violations: tuple[Violation, ...]
    operands: tuple[str, ...] = ("x",)
    degree: int = 1
    stages: int = 1
    accumulator: Callable[[np.dtype], np.dtype] = lambda dtype: dtype
    adapt: Callable[[Case, list[np.ndarray]], list[np.ndarray]] = lambda case, arrays: arrays
