"""This project's own functions, by the contracts that they claim to satisfy."""

from collections.abc import Callable

from shardproof.impl import algorithms, collectives
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.contracts.contract import CONCESSIONS, Claim, Contract
from shardproof.properties.contracts.costs import transposed
from shardproof.properties.programs.expectation import Expectation, Overlap, names_of
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.products import CLAIMS

EXTRAS = frozenset({"empty_blocks", "explained_errors", "negative_dimensions", "replicated_operands", "trees", "x64"})
"""The features of all of this project's own collectives, so far as their contracts have them."""


def _implementation(contract: Contract, name: str, claim: Claim) -> Implementation:
    invariant = contract.invariant if claim.invariant is None else claim.invariant
    known = names_of(contract)
    return Implementation(
        contract,
        name,
        claim.function,
        contract.features - CONCESSIONS if claim.features is None else claim.features & contract.features,
        # a case may lay out its arrays in any way, and its results are typed by that
        invariant=None if claim.whole or contract.call.roles else invariant,
        communication=None if claim.communication is None else Expectation.parse(claim.communication, known),
        overlap=Overlap.parse(claim.overlap, known) if claim.overlap else None,
        built_in=True,
        serves=claim.supports,
        whole=claim.whole,
        layouts=claim.layouts,
    )


def _collective(name: str, communication: str, *features: str) -> Implementation:
    claim = Claim(getattr(collectives, name), EXTRAS | set(features), communication=communication)
    return _implementation(CONTRACTS[name], "lax", claim)


def over_a_power_of_two(case: Case) -> bool:
    """True if the participants are a power of two."""
    return case.participants & (case.participants - 1) == 0


def _algorithm(
    of: str, name: str, communication: str, *features: str, supports: Callable[[Case], bool] | None = None
) -> Implementation:
    """One of permutes alone, each of which waits for the one before; the gradient has the inverse ones."""
    steps = communication.removeprefix("permute=").partition(",bytes=")[0]
    claim = Claim(
        getattr(algorithms, name),
        EXTRAS | set(features),
        invariant=False,  # nothing casts what a permute delivers back to invariant
        communication=transposed(f"{communication},steps={steps}"),
        supports=supports,
    )
    return _implementation(CONTRACTS[of], name, claim)


BUILT_IN: tuple[Implementation, ...] = (
    _collective(
        "all_reduce", "all_reduce=1,bytes=elements(x)*termsize;grad:bytes=0", "bool_sum", "groups", "uneven_groups"
    ),
    _collective("all_gather", "all_gather=1,bytes=x;grad:reduce_scatter=1,bytes=p*x", "groups"),
    _collective("all_gather_invariant", "all_gather=1,bytes=x;grad:bytes=0"),
    _collective("reduce_scatter", "reduce_scatter=1,bytes=x;grad:all_gather=1,bytes=x/p", "groups"),
    _collective("all_to_all", transposed("all_to_all=1,bytes=x"), "groups"),
    _collective("permute", transposed("permute=1,bytes=x")),
    _collective("ring_shift", transposed("permute=1,bytes=x")),
    # a gather, of which all but one block are dropped
    _collective("broadcast", "all_gather=1,bytes=x;grad:reduce_scatter=1,bytes=p*x"),
)

PIECE = "ceil(elements(x)/p)*termsize"
"""A p-th of what is added up, rounded up to whole elements."""

ALGORITHMS: tuple[Implementation, ...] = (
    # Thakur, Rabenseifner and Gropp 2005, section 4.1
    _algorithm("all_gather", "ring_all_gather", "permute=p-1,bytes=(p-1)*x"),
    # 1, 2, 4, ... blocks and at last what is missing (Bruck et al. 1997, section 4)
    _algorithm("all_gather", "bruck_all_gather", "permute=ceil(log2(p)),bytes=(p-1)*x"),
    _algorithm("reduce_scatter", "ring_reduce_scatter", "permute=p-1,bytes=(p-1)*x/p"),
    # Thakur et al. 2005, section 4.2
    _algorithm(
        "reduce_scatter",
        "recursive_halving_reduce_scatter",
        "permute=log2(p),bytes=(p-1)*x/p",
        supports=over_a_power_of_two,
    ),
    # a reduce-scatter and an all-gather (Patarasuk and Yuan 2009, section 3)
    _algorithm("all_reduce", "ring_all_reduce", f"permute=2*(p-1),bytes=2*(p-1)*{PIECE}", "bool_sum"),
    # Thakur et al. 2005, section 4.5
    _algorithm(
        "all_reduce",
        "recursive_doubling_all_reduce",
        "permute=log2(p),bytes=log2(p)*elements(x)*termsize",
        "bool_sum",
        supports=over_a_power_of_two,
    ),
    # Chan et al. 2007, section 4
    _algorithm("broadcast", "tree_broadcast", "permute=ceil(log2(p)),bytes=ceil(log2(p))*x"),
    # p-1 pieces leave the root; then a ring (Thakur et al. 2005, section 4.4)
    _algorithm(
        "broadcast",
        "scatter_all_gather_broadcast",
        "permute=ceil(log2(p))+p-1,bytes=2*(p-1)*ceil(elements(x)/p)*itemsize(x)",
    ),
)

_PRODUCTS = tuple(
    _implementation(CONTRACTS[contract], name, claim)
    for contract, claims in CLAIMS.items()
    for name, claim in claims.items()
)

PRODUCTS = tuple(one for one in _PRODUCTS if one.name == "naive")

OVERLAPPED = tuple(one for one in _PRODUCTS if one.name != "naive")
"""Products whose communication is hidden behind their arithmetic."""

OPERATIONS: tuple[Implementation, ...] = tuple(
    _implementation(contract, name, claim)
    for contract in CONTRACTS.values()
    for name, claim in contract.implementations.items()
)
"""Implementations that their contracts name themselves."""

IMPLEMENTATIONS: tuple[Implementation, ...] = (*BUILT_IN, *ALGORITHMS, *PRODUCTS, *OVERLAPPED, *OPERATIONS)
