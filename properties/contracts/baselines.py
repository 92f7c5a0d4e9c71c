"""The contracts of matrix products in any layout: what compilers are compared with, and compared by."""

import math
from collections.abc import Callable, Mapping

from hypothesis import strategies as st

from shardproof.impl import baselines as implementations
from shardproof.oracles import baselines
from shardproof.oracles.communication import Cost
from shardproof.oracles.mesh import as_axes
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts.contract import Claim, Contract, Violation
from shardproof.properties.contracts.costs import bits, sum_bits
from shardproof.properties.contracts.described import Signature
from shardproof.properties.contracts.floats import float32_accumulator, floats
from shardproof.properties.contracts.forbidden import changed
from shardproof.properties.contracts.roles import Conditions
from shardproof.properties.contracts.whole import whole_contract

FEATURES = frozenset({"explained_errors", "narrow_accumulation", "x64"})
OURS = FEATURES - {"narrow_accumulation"}

MOST_DEVICES = 64
"""The largest mesh: a form that gathers has as many copies of an operand as there are devices."""


def roles_of(array: str) -> tuple[str, str]:
    """What lays out an array, or the result, which has no name."""
    return (f"{array}_rows", f"{array}_columns") if array else ("rows", "columns")


def layout_of(case: Case, array: str) -> baselines.Layout:
    """How a case lays it out."""
    rows, columns = (dict(case.roles)[role] for role in roles_of(array))
    return as_axes(rows), as_axes(columns)


def sides(case: Case) -> tuple[int, ...]:
    """B, D and F, or B, D, F and D, of the whole matrices."""
    whole = [o.placement.global_shape(o.block, case.mesh) for o in case.operands]
    return (whole[0][0], *(shape[1] for shape in whole))


def described(dimensions: Mapping[str, str], hidden: Mapping[str, str], result: str) -> tuple[Signature, Conditions]:
    """The signature of matrices whose dimensions are named, each laid out by roles of its own, and its conditions."""

    def laid_out(name: str, dimensions: str) -> str:
        return " ".join(f"{d}@{role}" for d, role in zip(dimensions, roles_of(name), strict=True))

    operands, hidden_ones = ([laid_out(*one) for one in some.items()] for some in (dimensions, hidden))
    signature = Signature.of(
        list(dimensions), operands, laid_out("", result), hidden=dict(zip(hidden, hidden_ones, strict=True))
    )
    layouts = tuple(map(roles_of, (*dimensions, *hidden, "")))
    return signature, Conditions(most=MOST_DEVICES, layouts=layouts)


def _mismatched(operand: int) -> Callable[[Case], st.SearchStrategy[Case]]:
    def cases(case: Case) -> st.SearchStrategy[Case]:
        rows, columns = case.operands[operand].block
        return st.just(changed(case, operand, block=(rows + 1, columns)))

    return cases


def _inner(case: Case) -> int:
    return math.prod(sides(case)[1:-1])


def _layouts(case: Case, *names: str) -> list[baselines.Layout]:
    return [layout_of(case, name) for name in names]


def _missing(*operands: str) -> Callable[[Case], int]:
    def least(case: Case) -> int:
        layouts, result = _layouts(case, *operands), layout_of(case, "")
        return math.ceil(baselines.lacking(case.mesh, sides(case), layouts, result) * bits(case) / 8)

    return least


SIGNATURE, CONDITIONS = described({"lhs": "bd", "rhs": "df"}, {}, "bf")
OF_TWO, OF_TWO_CONDITIONS = described({"x": "bd", "w_in": "df", "w_out": "fd"}, {"hidden": "bf"}, "bd")
OF_TWO_LAYOUTS = ("x", "w_in", "hidden", "w_out", "")


def _gathered(case: Case, backward: bool) -> Cost:
    layouts = _layouts(case, "lhs", "rhs", "")
    return baselines.gathered_cost(case.mesh, sides(case), *layouts, bits=bits(case), backward=backward)


def _reduced(case: Case, backward: bool) -> Cost:
    layouts, sums = _layouts(case, "lhs", "rhs", ""), sum_bits(case)
    return baselines.reduced_cost(case.mesh, sides(case), *layouts, bits=bits(case), sum_bits=sums, backward=backward)


def _two_gathered(case: Case, backward: bool) -> Cost:
    layouts = _layouts(case, *OF_TWO_LAYOUTS)
    return baselines.two_gathered_cost(case.mesh, sides(case), layouts, bits=bits(case), backward=backward)


CONTRACTS: tuple[Contract, ...] = (
    whole_contract(
        "sharded_matmul",
        SIGNATURE,
        baselines.matmul,
        conditions=CONDITIONS,
        dtypes=floats,
        kinds=("exact", "real", "scaled", "partial", "nan"),
        features=FEATURES,
        violations=(Violation("rhs", _mismatched(1)),),
        nonlinear=False,
        generic=False,
        terms=_inner,
        partial=lambda case: case.operands[0].block[1],
        degree=2,
        stages=2,  # a device's sum may be rounded before it is sent
        accumulator=float32_accumulator,
        least=_missing("lhs", "rhs"),
        implementations={
            "gathered": Claim(implementations.gathered_matmul, OURS, communication=_gathered),
            "reduced": Claim(implementations.reduced_matmul, OURS, communication=_reduced),
            "automatic": Claim(implementations.automatic_matmul, OURS, whole=True),
            "explicit": Claim(implementations.explicit_matmul, OURS, whole=True),
        },
    ),
    whole_contract(
        "two_matmuls",
        OF_TWO,
        baselines.two_matmuls,
        conditions=OF_TWO_CONDITIONS,
        dtypes=floats,
        kinds=("exact", "real", "exact", "scaled", "nan"),
        features=FEATURES,
        violations=(Violation("w_in", _mismatched(1)), Violation("w_out", _mismatched(2))),
        nonlinear=False,
        generic=False,
        terms=_inner,
        degree=3,
        stages=4,  # of each product a device's sum, and the sum of these
        accumulator=float32_accumulator,
        least=_missing("x", "w_in", "w_out"),
        implementations={
            "gathered": Claim(implementations.gathered_two_matmuls, OURS, communication=_two_gathered),
            "automatic": Claim(implementations.automatic_two_matmuls, OURS, whole=True),
            "explicit": Claim(implementations.explicit_two_matmuls, OURS, whole=True),
        },
    ),
)
