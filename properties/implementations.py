"""Who claims to satisfy which contract."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from impl import algorithms, collectives
from properties.contracts import CONTRACTS
from properties.costs import Communication, of_algorithm, of_built_in

ALGORITHM_SHARE = 0.25
"""What hand-written algorithms get of the examples: there are twenty of them, which share their pieces."""


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
        share: its examples, as a multiple of what a law grants.
        given: where the function was found, for one that a user named on the command line.
    """

    contract: str
    name: str
    function: Callable[..., Any]
    features: frozenset[str] = field(default=frozenset())
    invariant: bool | None = None
    communication: Communication | None = None
    share: float = 1.0
    given: Any = None

    def __str__(self) -> str:
        return f"{self.contract}[{self.name}]"


EXTRAS = frozenset({"explained_errors", "negative_dimensions", "replicated_operands", "trees"})
"""What all of this project's own implementations serve."""


def _built_in(contract: str, *features: str) -> Implementation:
    return Implementation(
        contract,
        "lax",
        getattr(collectives, contract),
        EXTRAS | set(features),
        invariant=CONTRACTS[contract].invariant,
        communication=of_built_in(contract),
    )


def _algorithm(contract: str, name: str, *features: str) -> Implementation:
    return Implementation(
        contract,
        name,
        getattr(algorithms, name),
        EXTRAS | set(features),
        invariant=False,  # nothing casts what a permute delivers back to invariant
        communication=of_algorithm(name),
        share=ALGORITHM_SHARE,
    )


BUILT_IN: tuple[Implementation, ...] = (
    _built_in("all_reduce", "bool_sum", "groups"),
    _built_in("all_gather", "groups"),
    _built_in("all_gather_invariant"),
    _built_in("reduce_scatter", "groups"),
    _built_in("all_to_all", "groups"),
    _built_in("permute"),
    _built_in("ring_shift"),
    _built_in("broadcast"),
)

ALGORITHMS: tuple[Implementation, ...] = (
    _algorithm("all_gather", "ring_all_gather"),
    _algorithm("all_gather", "bidirectional_all_gather"),
    _algorithm("all_gather", "shorter_way_all_gather"),
    _algorithm("all_gather", "recursive_doubling_all_gather"),
    _algorithm("all_gather", "bruck_all_gather"),
    _algorithm("reduce_scatter", "ring_reduce_scatter"),
    _algorithm("reduce_scatter", "bidirectional_reduce_scatter"),
    _algorithm("reduce_scatter", "recursive_halving_reduce_scatter"),
    _algorithm("all_reduce", "ring_all_reduce", "bool_sum"),
    _algorithm("all_reduce", "bidirectional_all_reduce", "bool_sum"),
    _algorithm("all_reduce", "recursive_doubling_all_reduce", "bool_sum"),
    _algorithm("all_reduce", "rabenseifner_all_reduce", "bool_sum"),
    _algorithm("all_reduce", "tree_all_reduce", "bool_sum"),
    _algorithm("all_reduce", "torus_all_reduce", "bool_sum"),
    _algorithm("all_reduce", "hierarchical_all_reduce", "bool_sum"),
    _algorithm("all_to_all", "pairwise_all_to_all"),
    _algorithm("all_to_all", "bruck_all_to_all"),
    _algorithm("all_to_all", "two_phase_all_to_all"),
    _algorithm("broadcast", "tree_broadcast"),
    _algorithm("broadcast", "scatter_all_gather_broadcast"),
)

IMPLEMENTATIONS: tuple[Implementation, ...] = (*BUILT_IN, *ALGORITHMS)
