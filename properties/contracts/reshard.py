"""The contract of a change of layout: any axes in any order to any others, of rows and of columns."""

import math

from hypothesis import strategies as st

from shardproof.impl import reshard as implementations
from shardproof.oracles import reshard
from shardproof.oracles.baselines import Layout
from shardproof.oracles.communication import Cost
from shardproof.oracles.mesh import as_axes
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts.baselines import described, layout_of
from shardproof.properties.contracts.contract import Claim, Contract, Violation
from shardproof.properties.contracts.costs import bits
from shardproof.properties.contracts.floats import floats
from shardproof.properties.contracts.forbidden import changed
from shardproof.properties.contracts.whole import whole_contract

FEATURES = frozenset({"explained_errors", "x64"})

SIGNATURE, CONDITIONS = described({"x": "bd"}, {}, "bd")


def _sides(case: Case) -> tuple[int, int]:
    rows, columns = case.operands[0].placement.global_shape(case.operands[0].block, case.mesh)
    return rows, columns


def _layouts(case: Case) -> tuple[Layout, Layout]:
    return layout_of(case, "x"), layout_of(case, "")


def _exchanged(case: Case, backward: bool) -> Cost:
    return reshard.exchanged_cost(case.mesh, _sides(case), *_layouts(case), bits=bits(case), backward=backward)


def _least(case: Case) -> int:
    return math.ceil(reshard.lacking(case.mesh, _sides(case), *_layouts(case)) * bits(case) / 8)


def _misshapen(case: Case) -> st.SearchStrategy[Case]:
    """More rows in each block than can be divided as wanted, or a dimension too many if any number can."""
    held, wanted = (case.mesh.axis_size(as_axes(dict(case.roles)[role])) for role in ("x_rows", "rows"))
    rows, columns = case.operands[0].block
    found = [n for n in range(rows + 1, rows + wanted + 1) if held * n % wanted]
    return st.just(changed(case, 0, block=(found[0], columns) if found else (rows, columns, 2)))


CONTRACT: Contract = whole_contract(
    "reshard",
    SIGNATURE,
    reshard.reshard,
    conditions=CONDITIONS,
    dtypes=floats,
    kinds=("distinct", "real", "nan"),
    features=FEATURES,
    violations=(Violation("x", _misshapen),),
    nonlinear=False,
    generic=False,
    terms=lambda case: 1,
    degree=1,
    least=_least,
    implementations={
        "exchanged": Claim(implementations.exchanged_reshard, FEATURES, communication=_exchanged),
        "constrained": Claim(implementations.constrained_reshard, FEATURES, whole=True),
        "explicit": Claim(implementations.explicit_reshard, FEATURES, whole=True),
    },
)
