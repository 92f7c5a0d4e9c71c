"""Who claims to satisfy which contract."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shardproof.impl import algorithms, collective_matmul, collectives
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts import CONTRACTS, matmul
from shardproof.properties.contracts.contract import Claim, Communication, Contract
from shardproof.properties.contracts.features import CONCESSIONS
from shardproof.properties.programs.costs import NARROW_WAYS, of_algorithm, of_built_in, of_product
from shardproof.properties.programs.expectation import Expectation
from shardproof.properties.programs.hiding import hidden_by
from shardproof.properties.programs.overlap import Overlap


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
        overlap: what is claimed of how it hides its communication; None: nothing.
        form: what it gets of the examples that a law grants, as one of `budgets.SHARES`.
        serves: whether it serves a case; others are not drawn for it. None: all, or as it then says itself.
        given: where the function was found, for one that a user named on the command line.
        whole: whether it is a function of global arrays, which gets the mesh as `mesh`, and not of blocks.
        layouts: how it wants its arguments laid out, if not as its contract describes them (see `Claim`).
        check_vma: whether `shard_map` may check its types.
        program: the program of a user's own that it is, if its contract is in no list.
    """

    contract: str
    name: str
    function: Callable[..., Any]
    features: frozenset[str] = field(default=frozenset())
    invariant: bool | None = None
    communication: Communication | None = None
    expectation: Expectation | None = None
    overlap: Overlap | None = None
    form: str = "user"
    serves: Callable[[Case], bool] | None = None
    given: Any = None
    whole: bool = False
    layouts: tuple[Any, ...] = field(default=(), hash=False)
    check_vma: bool = True
    program: Any = None

    @property
    def unclaimed(self) -> tuple[str, ...]:
        """The features of the contract that it does not claim, so that nothing of them is drawn."""
        return tuple(sorted(CONTRACTS[self.contract].features - self.features - CONCESSIONS))

    @property
    def stated(self) -> tuple[str, ...]:
        """What it is said to need, of a program."""
        return () if self.program is None else self.program.stated

    def __str__(self) -> str:
        return called(self.contract, self.name)


def called(contract: str, name: str) -> str:
    """What an implementation of a contract is called: `all_gather[ring]`, or just `mlp` where it has its own."""
    return name if name == contract else f"{contract}[{name}]"


EXTRAS = frozenset({"empty_blocks", "explained_errors", "negative_dimensions", "replicated_operands", "trees", "x64"})
"""What all of this project's own collectives serve, so far as their contracts have it."""

PRODUCT_EXTRAS = frozenset({"batch_dimensions", "empty_blocks", "explained_errors", "x64"})
"""What all of this project's own products serve."""

NARROW = frozenset({"narrow_accumulation"})
"""Of those whose sums travel in the operands' dtype."""

INVARIANT_WAYS = ("scattered",)
"""Forms of a product whose sum is typed invariant."""

SUMMED = ("matmul_reduce_scatter", "matmul_all_reduce", "transformer_block")
"""Products whose sums are sent."""


def _built_in(contract: str, *features: str) -> Implementation:
    return Implementation(
        contract,
        "lax",
        getattr(collectives, contract),
        (EXTRAS | set(features)) & CONTRACTS[contract].features,
        invariant=CONTRACTS[contract].invariant,
        communication=of_built_in(contract),
        form="lax",
    )


def over_a_power_of_two(case: Case) -> bool:
    """Whether the participants are a power of two."""
    return case.participants & (case.participants - 1) == 0


def over_two_axes(case: Case) -> bool:
    """Whether the axis tuple has two axes."""
    return len(case.axes) == 2


def _algorithm(
    contract: str, name: str, *features: str, serves: Callable[[Case], bool] | None = None
) -> Implementation:
    return Implementation(
        contract,
        name,
        getattr(algorithms, name),
        (EXTRAS | set(features)) & CONTRACTS[contract].features,
        invariant=False,  # nothing casts what a permute delivers back to invariant
        communication=of_algorithm(name),
        form="algorithm",
        serves=serves,
    )


def _product(contract: str) -> Implementation:
    function = getattr(collective_matmul, contract)
    invariant = CONTRACTS[contract].invariant
    return Implementation(
        contract,
        "naive",
        function,
        PRODUCT_EXTRAS,
        invariant=invariant,
        communication=of_product("naive"),
        form="naive",
    )


def _overlapped(way: str, contract: str, *, invariant: bool = False) -> Implementation:
    name = f"{way}_{contract}"
    return Implementation(
        contract,
        name,
        getattr(collective_matmul, name),
        PRODUCT_EXTRAS | (NARROW if contract in SUMMED and way in NARROW_WAYS else frozenset()),
        invariant=invariant,
        communication=of_product("ring" if way == "overlapped" else way),
        overlap=hidden_by(way, contract),
        form="overlapped",
    )


BUILT_IN: tuple[Implementation, ...] = (
    _built_in("all_reduce", "bool_sum", "groups", "uneven_groups"),
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
    _algorithm("all_gather", "recursive_doubling_all_gather", serves=over_a_power_of_two),
    _algorithm("all_gather", "bruck_all_gather"),
    _algorithm("reduce_scatter", "ring_reduce_scatter"),
    _algorithm("reduce_scatter", "bidirectional_reduce_scatter"),
    _algorithm("reduce_scatter", "recursive_halving_reduce_scatter", serves=over_a_power_of_two),
    _algorithm("all_reduce", "ring_all_reduce", "bool_sum"),
    _algorithm("all_reduce", "bidirectional_all_reduce", "bool_sum"),
    _algorithm("all_reduce", "recursive_doubling_all_reduce", "bool_sum", serves=over_a_power_of_two),
    _algorithm("all_reduce", "rabenseifner_all_reduce", "bool_sum", serves=over_a_power_of_two),
    _algorithm("all_reduce", "tree_all_reduce", "bool_sum"),
    _algorithm("all_reduce", "torus_all_reduce", "bool_sum", serves=over_two_axes),
    _algorithm("all_to_all", "pairwise_all_to_all"),
    _algorithm("all_to_all", "bruck_all_to_all"),
    _algorithm("all_to_all", "two_phase_all_to_all", serves=over_two_axes),
    _algorithm("broadcast", "tree_broadcast"),
    _algorithm("broadcast", "scatter_all_gather_broadcast"),
)

PRODUCTS: tuple[Implementation, ...] = tuple(_product(contract.name) for contract in matmul.CONTRACTS)

FORMS: dict[str, tuple[str, ...]] = {
    "all_gather_matmul_lhs_contracting": ("ring", "bidirectional", "chunked", "paired"),
    "all_gather_matmul_lhs": ("ring", "bidirectional", "joined", "paired"),
    "all_gather_matmul_rhs": ("ring", "joined", "paired"),
    "matmul_reduce_scatter": ("ring", "alternating", "paired"),
    "matmul_all_reduce": ("alternating", "scattered"),
    "transformer_block": ("overlapped", "alternating", "paired"),
}
"""The forms of each product that overlap: each is the best in something (`benchmark survivors`)."""

OVERLAPPED: tuple[Implementation, ...] = tuple(
    _overlapped(way, contract, invariant=way in INVARIANT_WAYS) for contract, ways in FORMS.items() for way in ways
)
"""Products whose communication is hidden behind their arithmetic."""


def _claimed(contract: Contract, name: str, claim: Claim) -> Implementation:
    return Implementation(
        contract.name,
        name,
        claim.function,
        claim.features,
        invariant=_invariant(contract, claim),
        communication=claim.communication,
        overlap=None if claim.exposed is None else Overlap(claim.exposed, claim.directions),
        form="whole" if claim.whole else contract.form,
        serves=claim.supports,
        whole=claim.whole,
        layouts=claim.layouts,
    )


def _invariant(contract: Contract, claim: Claim) -> bool | None:
    """What is known of the type along the axis tuple: nothing, where arrays are laid out as a case says."""
    if claim.whole or contract.roles:
        return None
    return contract.invariant if claim.invariant is None else claim.invariant


OPERATIONS: tuple[Implementation, ...] = tuple(
    _claimed(contract, name, claim)
    for contract in CONTRACTS.values()
    for name, claim in contract.implementations.items()
)
"""Implementations that their contracts name themselves."""

IMPLEMENTATIONS: tuple[Implementation, ...] = (*BUILT_IN, *ALGORITHMS, *PRODUCTS, *OVERLAPPED, *OPERATIONS)
