"""Which of this project's own functions claim to satisfy which contract."""

from collections.abc import Callable

from shardproof.impl import algorithms, collective_matmul, collectives
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.contracts.contract import CONCESSIONS, Claim, Contract
from shardproof.properties.contracts.costs import transposed
from shardproof.properties.programs.expectation import Overlap, names_of
from shardproof.properties.programs.implementations import Implementation, said
from shardproof.properties.programs.products import NAIVE, OVERLAPPING, Form

EXTRAS = frozenset({"empty_blocks", "explained_errors", "negative_dimensions", "replicated_operands", "trees", "x64"})
"""What all of this project's own collectives serve, so far as their contracts have it."""

PRODUCT_EXTRAS = frozenset({"batch_dimensions", "empty_blocks", "explained_errors", "x64"})
"""What all of this project's own products serve."""

NARROW = frozenset({"narrow_accumulation"})
"""Of those whose sums travel in the operands' dtype."""


def _claimed(contract: Contract, name: str, claim: Claim, invariant: bool | None) -> Implementation:
    return Implementation(
        contract,
        name,
        claim.function,
        contract.features - CONCESSIONS if claim.features is None else claim.features & contract.features,
        invariant=invariant,
        communication=said(claim.communication, contract),
        overlap=Overlap.parse(claim.overlap, names_of(contract)) if claim.overlap else None,
        built_in=True,
        serves=claim.supports,
        whole=claim.whole,
        layouts=claim.layouts,
    )


def _built_in(name: str, communication: str, *features: str) -> Implementation:
    contract = CONTRACTS[name]
    claim = Claim(getattr(collectives, name), EXTRAS | set(features), communication=communication)
    return _claimed(contract, "lax", claim, contract.invariant)


def over_a_power_of_two(case: Case) -> bool:
    """Whether the participants are a power of two."""
    return case.participants & (case.participants - 1) == 0


def _algorithm(
    of: str, name: str, communication: str, *features: str, serves: Callable[[Case], bool] | None = None
) -> Implementation:
    """One of permutes alone, each a step unless fewer are said; the gradient's are the inverse ones, as many."""
    if ",steps=" not in communication:
        communication += f",steps={communication.removeprefix('permute=').partition(',bytes=')[0]}"
    claim = Claim(
        getattr(algorithms, name), EXTRAS | set(features), communication=transposed(communication), supports=serves
    )
    # nothing casts what a permute delivers back to invariant
    return _claimed(CONTRACTS[of], name, claim, invariant=False)


def _product(of: str, way: str, form: Form) -> Implementation:
    naive, contract = way == "naive", CONTRACTS[of]
    name = of if naive else f"{way}_{of}"
    features = PRODUCT_EXTRAS | (NARROW if form.narrow else frozenset())
    function = getattr(collective_matmul, name)
    claim = Claim(function, features, communication=form.communication, overlap=form.overlap)
    return _claimed(contract, "naive" if naive else name, claim, contract.invariant if naive else form.invariant)


BUILT_IN: tuple[Implementation, ...] = (
    _built_in(
        "all_reduce", "all_reduce=1,bytes=elements(x)*termsize;grad:bytes=0", "bool_sum", "groups", "uneven_groups"
    ),
    _built_in("all_gather", "all_gather=1,bytes=x;grad:reduce_scatter=1,bytes=p*x", "groups"),
    _built_in("all_gather_invariant", "all_gather=1,bytes=x;grad:bytes=0"),
    _built_in("reduce_scatter", "reduce_scatter=1,bytes=x;grad:all_gather=1,bytes=x/p", "groups"),
    _built_in("all_to_all", transposed("all_to_all=1,bytes=x"), "groups"),
    _built_in("permute", transposed("permute=1,bytes=x")),
    _built_in("ring_shift", transposed("permute=1,bytes=x")),
    # a gather of which all but one block are dropped
    _built_in("broadcast", "all_gather=1,bytes=x;grad:reduce_scatter=1,bytes=p*x"),
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
        serves=over_a_power_of_two,
    ),
    # a reduce-scatter and an all-gather (Patarasuk and Yuan 2009, section 3)
    _algorithm("all_reduce", "ring_all_reduce", f"permute=2*(p-1),bytes=2*(p-1)*{PIECE}", "bool_sum"),
    # Thakur et al. 2005, section 4.5
    _algorithm(
        "all_reduce",
        "recursive_doubling_all_reduce",
        "permute=log2(p),bytes=log2(p)*elements(x)*termsize",
        "bool_sum",
        serves=over_a_power_of_two,
    ),
    # halving, and back (Rabenseifner 2004)
    _algorithm(
        "all_reduce",
        "rabenseifner_all_reduce",
        f"permute=2*log2(p),bytes=2*(p-1)*{PIECE}",
        "bool_sum",
        serves=over_a_power_of_two,
    ),
    # down a binomial tree and up again (Chan et al. 2007, section 4)
    _algorithm(
        "all_reduce",
        "tree_all_reduce",
        "permute=2*ceil(log2(p)),bytes=2*ceil(log2(p))*elements(x)*termsize",
        "bool_sum",
    ),
    # Thakur et al. 2005, section 4.3
    _algorithm("all_to_all", "pairwise_all_to_all", "permute=p-1,bytes=(p-1)*x/p"),
    # in step i, the pieces of all distances below p of which bit i is set (Bruck et al. 1997, section 3)
    _algorithm(
        "all_to_all",
        "bruck_all_to_all",
        "permute=ceil(log2(p)),bytes=x/p*sum(p//2**(i+1)*2**i+max(0,p%2**(i+1)-2**i) for i in range(log2(p)))",
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

PRODUCTS: tuple[Implementation, ...] = tuple(_product(contract, "naive", form) for contract, form in NAIVE.items())

OVERLAPPED: tuple[Implementation, ...] = tuple(
    _product(contract, way, form) for contract, forms in OVERLAPPING.items() for way, form in forms.items()
)
"""Products whose communication is hidden behind their arithmetic."""


def _invariant(contract: Contract, claim: Claim) -> bool | None:
    """What is known of the type along the axis tuple: nothing, where arrays are laid out as a case says."""
    if claim.whole or contract.call.roles:
        return None
    return contract.invariant if claim.invariant is None else claim.invariant


OPERATIONS: tuple[Implementation, ...] = tuple(
    _claimed(contract, name, claim, _invariant(contract, claim))
    for contract in CONTRACTS.values()
    for name, claim in contract.implementations.items()
)
"""Implementations that their contracts name themselves."""

IMPLEMENTATIONS: tuple[Implementation, ...] = (*BUILT_IN, *ALGORITHMS, *PRODUCTS, *OVERLAPPED, *OPERATIONS)
