"""The contract of a change of layout: any axes in any order to any others, of rows and of columns."""

import math

from hypothesis import strategies as st

from shardproof.impl import reshard as implementations
from shardproof.oracles import baselines
from shardproof.oracles.mesh import as_axes
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts.baselines import bits, described, layouts_of, sides
from shardproof.properties.contracts.contract import Claim, Contract, Violation
from shardproof.properties.contracts.drawing import floats
from shardproof.properties.contracts.forbidden import change_operand
from shardproof.properties.contracts.whole import whole_contract

SIGNATURE, CONDITIONS = described({"x": "bd"}, {}, "bd")


def _least(case: Case) -> int:
    lacking = baselines.missing_elements(case.mesh, sides(case), *layouts_of(case, "x", "")).sum(axis=(-2, -1))
    return math.ceil(int(lacking.max(initial=0)) * bits(case) / 8)


def _misshapen(case: Case) -> st.SearchStrategy[Case]:
    """More rows in each block than can be divided as wanted, or a dimension too many if any number can."""
    held, wanted = (case.mesh.axis_size(as_axes(dict(case.roles)[role])) for role in ("x_rows", "rows"))
    rows, columns = case.operands[0].block
    found = [n for n in range(rows + 1, rows + wanted + 1) if held * n % wanted]
    return st.just(change_operand(case, 0, block=(found[0], columns) if found else (rows, columns, 2)))


CONTRACTS: tuple[Contract, ...] = (
    whole_contract(
        "reshard",
        SIGNATURE,
        baselines.reshard,
        conditions=CONDITIONS,
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
