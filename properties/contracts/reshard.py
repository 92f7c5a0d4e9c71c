"""The contract of a change of layout: any axes in any order to any others, of rows and of columns."""

import math

from hypothesis import strategies as st

from shardproof.impl import reshard as implementations
from shardproof.oracles import reshard
from shardproof.oracles.dtypes import width
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts.contract import Claim, Contract, Violation
from shardproof.properties.contracts.described import Signature
from shardproof.properties.contracts.drawing import floats
from shardproof.properties.contracts.forbidden import change_operand
from shardproof.properties.contracts.roles import Conditions, axes_of
from shardproof.properties.contracts.whole import whole_contract

MOST_DEVICES = 64
"""The largest mesh: where a form gathers, a matrix has as many copies as there are devices."""

HELD, WANTED = ("x_rows", "x_columns"), ("rows", "columns")
"""The roles of a matrix's dimensions before and after."""


def _least(case: Case) -> int:
    """The bytes that some device lacks of its part of the result."""
    (x,), axes = case.operands, axes_of(case.roles)
    held, wanted = ((axes[rows], axes[columns]) for rows, columns in (HELD, WANTED))
    sides = x.placement.global_shape(x.block, case.mesh)
    lacking = reshard.missing_elements(case.mesh, sides, held, wanted).sum(axis=(-2, -1))
    return math.ceil(int(lacking.max(initial=0)) * width(x.numpy_dtype) / 8)


def _misshapen(case: Case) -> st.SearchStrategy[Case]:
    """More rows in each block than can be divided as wanted, or a dimension too many if any number can."""
    axes = axes_of(case.roles)
    held, wanted = (case.mesh.axis_size(axes[role]) for role in ("x_rows", "rows"))
    rows, columns = case.operands[0].block
    found = [n for n in range(rows + 1, rows + wanted + 1) if held * n % wanted]
    return st.just(change_operand(case, 0, block=(found[0], columns) if found else (rows, columns, 2)))


CONTRACTS: tuple[Contract, ...] = (
    whole_contract(
        "reshard",
        Signature.of(["x"], ["b@x_rows d@x_columns"], "b@rows d@columns"),
        reshard.reshard,
        conditions=Conditions(most=MOST_DEVICES, layouts=(HELD, WANTED)),
        dtypes=floats,
        kinds=("distinct", "real", "nan"),
        features=frozenset({"explained_errors", "x64"}),
        violations=(Violation("x", _misshapen),),
        linear=True,
        generic=False,
        least=_least,
        implementations={
            "exchanged": Claim(implementations.exchanged_reshard),
            "constrained": Claim(implementations.constrained_reshard, whole=True),
            "explicit": Claim(implementations.explicit_reshard, whole=True),
        },
    ),
)
