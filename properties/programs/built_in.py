"""This project's own functions, by the contracts that they claim to satisfy.

What products send, and how they hide it, is as in Wang et al., "Overlap Communication with Dependent Computation via
Decomposition in Large Deep Learning Models", 2023, sections 5.1 and 5.4. A gradient alone gathers again what the
forward pass gathered. Exposed parts are those on a machine whose busiest link needs as long as p-1 of p products.
"""

from collections.abc import Callable
from functools import partial

from shardproof.impl import algorithms, collective_matmul, collectives
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.contracts.contract import CONCESSIONS, Claim, Contract
from shardproof.properties.contracts.costs import added_up, replicas, transposed
from shardproof.properties.programs.expectation import Expectation, Overlap, names_of
from shardproof.properties.programs.implementations import Implementation

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

OF_PRODUCTS = frozenset({"batch_dimensions", "empty_blocks", "explained_errors", "x64"})
"""The features of all products."""

Form = partial[Claim]
"""The claim of a function that is still to be given."""


def _form(communication: str, overlap: str = "", *, narrow: bool = False, invariant: bool | None = None) -> Form:
    """A form; `narrow` if its sums travel in the operands' dtype."""
    features = OF_PRODUCTS | {"narrow_accumulation"} if narrow else OF_PRODUCTS
    return partial(Claim, features=features, invariant=invariant, communication=communication, overlap=overlap)


FIRST_PRODUCT = ("lhs", "rhs")


def _permutes(count: str, size: str, steps: str, *names: str) -> str:
    """Permutes, and the sums of the gradients of replicas of these operands; `steps` of them wait for one another."""
    if not names:
        return f"permute={count},bytes={size}" + f",steps={steps}" * bool(steps)
    waiting = f",steps={steps}+{replicas(*names)}" * bool(steps)
    return f"permute={count},permute_bytes={size},{added_up(*names)}{waiting}"


def _gathered(moved: str, *, count: str = "p-1", steps: str = "", backward: str = "", back_steps: str = "") -> str:
    """An operand moves in `count` permutes, and backward twice, once to be gathered and once as a sum."""
    back_steps = back_steps or (f"2*({steps})" if steps else "")
    back = _permutes(backward or f"2*({count})", f"2*(p-1)*{moved}", back_steps, *FIRST_PRODUCT)
    return f"{_permutes(count, f'(p-1)*{moved}', steps)};grad:{back}"


def _holding(moved: str, blocks: int, more: str = "") -> str:
    """Operands, the result and its sum in float32, moving blocks and what they are multiplied by, and indices."""
    return f"memory<=lhs+rhs+5*out+{2 * blocks}*{moved}+4*(lhs+rhs)/p+8*p+64{more}"


def _gathering(moved: str, side: str) -> dict[str, Form]:
    """The forms that gather an operand, whose blocks are cut in halves along a side; `paired` ones are not cut."""
    naive = (
        f"all_gather=1,bytes={moved};grad:all_gather=1,all_gather_bytes={moved},"
        f"reduce_scatter=1,reduce_scatter_bytes=p*{moved},{added_up('lhs', 'rhs')}"
    )
    halves = _gathered(moved, count=f"(p-1)*(2 if {side}>1 else 1)", steps="p-1")
    joined = f"exposed<=0,directions=2,{_holding(moved, 3, '+2*out/p')}"
    return {
        "naive": _form(naive),
        "ring": _form(_gathered(moved), f"exposed<=0,{_holding(moved, 2)}"),
        "bidirectional": _form(halves, f"exposed<=0,directions=2,{_holding(moved, 2)}"),
        "joined": _form(halves, joined),
        "paired": _form(_gathered(moved, steps="p//2"), f"exposed<=2/p,directions=2,{_holding(moved, 4)}"),
    }


COLUMNS = _gathering("lhs", "size(lhs,-1)")
ROWS = _gathering("lhs", "size(lhs,-2)")
WEIGHTS = _gathering("rhs", "size(rhs,0)")

M, CHUNKS = "max(size(lhs,-2),1)", "min(8,ceil(size(lhs,-2)/2))"
FIRST = f"ceil({M}/max(1,{CHUNKS}))/{M}"
"""The part of the rows that a chunk has, of 8, or of as many as have two rows; a row more if they are uneven."""

CHUNKED = _form(
    # each chunk comes the shorter way and waits for none; among more than eight participants there is one
    _gathered("lhs", count=f"(p-1)*(1 if p>8 else {CHUNKS})", steps="1 if p==4 else p//2"),
    f"exposed<=2/p if p>8 else {FIRST},directions=2,"
    f"memory<=lhs+rhs+5*out+8*p+64+(8*lhs+4*(lhs+rhs)/p if p>8 else 4*lhs+3*p*lhs*{FIRST})",
)

HALVES = "(p-1)*(2 if rows>1 else 1)"
TURNS = "(ceil(rows/2)/max(rows,rows//2*(1+rows/ceil(rows/2))) if rows>1 else 0)"
"""The larger half's transfer less the other half's product, as a part of the time in which one travels.

A link takes as long for the larger half as all of a step's products do.
"""

SUM = "elements(out)*sum_itemsize(lhs)"


def _scattered(count: str, size: str, steps: str, backward: str, back_steps: str) -> str:
    """A sum moves, backward its cotangent."""
    forward, back = _permutes(count, size, steps), _permutes(backward, size, back_steps, *FIRST_PRODUCT)
    return f"{forward};grad:{back}"


SCATTERING = {
    "naive": _form(
        f"reduce_scatter=1,bytes=p*{SUM};grad:all_gather=1,all_gather_bytes={SUM},{added_up(*FIRST_PRODUCT)}"
    ),
    "ring": _form(_scattered("p-1", f"(p-1)*{SUM}", "", "p-1", ""), f"exposed<=0,{_holding('out', 2)}"),
    "alternating": _form(
        _scattered(HALVES, "(p-1)*out", "p-1", HALVES, "(p-1)"),
        f"exposed<={TURNS},directions=2,{_holding('out', 2)}",
        narrow=True,
    ),
    # four parts, two each way; the gradient gathers the shorter way. Fewer rows, or more participants, take turns
    "paired": _form(
        _scattered(
            f"4*(p-1) if (p<=8)*(rows>=4) else {HALVES}",
            "(p-1)*out",
            "(p-1)*(1+(p<=8)*(rows>=4))",
            f"{HALVES} if p>8 else p-1",
            "(p-1 if p>8 else p//2)",
        ),
        # backward, among four, the cotangent's block from the opposite one takes two links, beside one product
        f"exposed<={TURNS} if p>8 else 1/2 if rows>=4 else max(1/2,{TURNS}),directions=2,{_holding('out', 4)}",
        narrow=True,
    ),
}

ROW = "out/max(size(lhs,-2),1)"
HALVED = "(2 if size(lhs,-2)>=2*p else 1)"
SHARE = f"ceil(size(lhs,-2)/({HALVED}*p))"
TURNING = f"2*{HALVED}*(p-1)*(2 if {SHARE}>1 else 1)"
REDUCING = {
    "naive": _form(f"all_reduce=1,bytes={SUM};grad:{added_up(*FIRST_PRODUCT)}"),
    # pieces of M/p rows are scattered by halves in turns, and collected by one all-gather
    "scattered": _form(
        f"permute=(p-1)*(2 if size(lhs,-2)>p else 1),permute_bytes=(p-1)*ceil(size(lhs,-2)/p)*{ROW},"
        f"all_gather=1,all_gather_bytes=ceil(size(lhs,-2)/p)*{ROW};grad:{added_up(*FIRST_PRODUCT)}",
        "exposed<=7/11",
        narrow=True,
    ),
    # 2p pieces, of which p are gathered while the others are scattered; of fewer rows, p
    "alternating": _form(
        f"{_permutes(TURNING, f'2*{HALVED}*(p-1)*{SHARE}*{ROW}', f'({HALVED}+1)*(p-1)')};grad:"
        + _permutes(TURNING, f"2*{HALVED}*(p-1)*{SHARE}*{ROW}", f"({HALVED}+1)*(p-1)", *FIRST_PRODUCT),
        "exposed<=5/8,directions=2",
        narrow=True,
        invariant=False,
    ),
}

BLOCK = ("x", "w_in", "w_out")
WIDE = "elements(x)*sum_itemsize(x)"
PLAIN = (
    f"all_gather=1,all_gather_bytes=x,reduce_scatter=1,reduce_scatter_bytes=p*{WIDE};"
    f"grad:all_gather=2,all_gather_bytes=x+{WIDE},reduce_scatter=1,reduce_scatter_bytes=p*x"
)
"""An input is gathered, and a sum of as many elements scattered; backward the input is gathered again."""

HALF = "(2 if size(x,-1)>1 else 1)"
BLOCKS = {
    "naive": _form(f"{PLAIN},{added_up(*BLOCK)}"),
    "overlapped": _form(
        f"permute=2*(p-1),bytes=(p-1)*(x+{WIDE});grad:" + _permutes("3*(p-1)", f"(p-1)*(2*x+{WIDE})", "", *BLOCK),
        "exposed<=1/6",  # 16-bit floats are gathered, and sums of twice the bytes are sent
    ),
    # rows come the shorter way; halves of sums take turns
    "alternating": _form(
        f"permute=(p-1)*(1+{HALF}),bytes=2*(p-1)*x,steps=p//2+p-1;grad:"
        + _permutes(f"(p-1)*(2+{HALF})", "3*(p-1)*x", "2*(p//2)+p-1", *BLOCK),
        "exposed<=5/8,directions=2",
        narrow=True,
    ),
    # sums go in four parts; backward the input and the cotangent are gathered side by side
    "paired": _form(
        f"permute=(p-1)*(1+(4 if (p<=8)*(size(x,-1)>=4) else {HALF})),bytes=2*(p-1)*x,"
        "steps=p//2+(p-1)*(1+(p<=8)*(size(x,-1)>=4));grad:"
        + _permutes(
            f"(p-1)*(4 if p<=8 else 2+{HALF})",
            "(p-1)*(4 if p<=8 else 3)*x",
            "(3*(p//2) if p<=8 else 2*(p//2)+p-1)",
            *BLOCK,
        ),
        "exposed<=5/8,directions=2",
        narrow=True,
    ),
}

FORMS: dict[str, dict[str, Form]] = {
    "all_gather_matmul_lhs_contracting": {
        **{name: COLUMNS[name] for name in ("naive", "ring", "bidirectional", "paired")},
        "chunked": CHUNKED,
    },
    "all_gather_matmul_lhs": {
        **{name: ROWS[name] for name in ("naive", "ring", "bidirectional")},
        # none of four pieces that are multiplied in place waits for another
        "paired": _form(
            _gathered("lhs", steps="1 if p==4 else p//2", back_steps="p//2+(1 if p==4 else p//2)"),
            f"exposed<=1/2,directions=2,{_holding('lhs', 4)}",
        ),
    },
    "all_gather_matmul_rhs": {
        **{name: WEIGHTS[name] for name in ("naive", "ring", "joined")},
        # halves that are joined; in the gradient among up to eight participants, whole pieces the shorter way
        "paired": _form(
            _gathered(
                "rhs",
                count="(p-1)*(2 if size(rhs,0)>1 else 1)",
                steps="p-1",
                backward="2*(p-1)*(2 if (p>8)*(size(rhs,0)>1) else 1)",
                back_steps="2*(p-1 if p>8 else p//2)",
            ),
            f"exposed<=2/p,directions=2,{_holding('rhs', 3, '+2*out/p')}",
        ),
    },
    "matmul_reduce_scatter": SCATTERING,
    "matmul_all_reduce": REDUCING,
    "transformer_block": BLOCKS,
}


def _product(contract: str, way: str) -> Implementation:
    function = contract if way == "naive" else f"{way}_{contract}"
    claim = FORMS[contract][way](getattr(collective_matmul, function))
    return _implementation(CONTRACTS[contract], way if way == "naive" else function, claim)


PRODUCTS = tuple(_product(contract, "naive") for contract in FORMS)

OVERLAPPED = tuple(_product(contract, way) for contract, forms in FORMS.items() for way in forms if way != "naive")
"""Products whose communication is hidden behind their arithmetic.

Each is the fastest at some shape as scheduled for TPUs, or by timelines.
"""

OPERATIONS: tuple[Implementation, ...] = tuple(
    _implementation(contract, name, claim)
    for contract in CONTRACTS.values()
    for name, claim in contract.implementations.items()
)
"""Implementations that their contracts name themselves."""

IMPLEMENTATIONS: tuple[Implementation, ...] = (*BUILT_IN, *ALGORITHMS, *PRODUCTS, *OVERLAPPED, *OPERATIONS)
