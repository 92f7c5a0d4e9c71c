"""Who claims to satisfy which contract."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from impl import collective_matmul, collectives
from oracles.communication import Cost
from properties.cases import Case
from properties.communication.expectation import Expectation
from properties.contracts import CONTRACTS, Contract
from properties.contracts.matmul import MATMULS


@dataclass(frozen=True)
class Implementation:
    """A function that claims to satisfy a contract.

    Arguments:
        contract: the contract's name.
        name: the implementation's name.
        function: the device-local function.
        features: what it serves beyond the contract's signature (see `FEATURES`).
        invariant: whether its result is typed invariant along the axis tuple; None: whatever the
            trace says (a user's function declares nothing).
        communication: the cost of a case, forward (`False`) or of its gradient alone (`True`); None: unknown.
        expectation: what a user expects of its communication, in place of a formula; None: nothing.
        given: where the function was found, for one that a user named on the command line.
    """

    contract: str
    name: str
    function: Callable[..., Any]
    features: frozenset[str] = field(default=frozenset())
    invariant: bool | None = None
    communication: Callable[[Case, bool], Cost] | None = None
    expectation: Expectation | None = None
    given: Any = None

    def __str__(self) -> str:
        return f"{self.contract}[{self.name}]"


def _built_in(contract: str, *features: str) -> Implementation:
    extras = frozenset({"explained_errors", "negative_dimensions", "replicated_operands", "trees", *features})
    return Implementation(
        contract, "lax", getattr(collectives, contract), extras, invariant=CONTRACTS[contract].invariant
    )


def _matmul(contract: Contract) -> Implementation:
    features = frozenset({"batch_dimensions", "explained_errors"})
    function = getattr(collective_matmul, contract.name)
    return Implementation(contract.name, "naive", function, features, invariant=contract.invariant)


IMPLEMENTATIONS: tuple[Implementation, ...] = (
    _built_in("all_reduce", "bool_sum", "groups"),
    _built_in("all_gather", "groups"),
    _built_in("all_gather_invariant"),
    _built_in("reduce_scatter", "groups"),
    _built_in("all_to_all", "groups"),
    _built_in("permute"),
    _built_in("ring_shift"),
    _built_in("broadcast"),
    *map(_matmul, MATMULS),
)
