"""The contracts of matrices in any layout: products by hand and by compilers, and a change of layout."""

import math
from collections.abc import Callable

from hypothesis import strategies as st

from shardproof.impl import baselines as implementations
from shardproof.impl import reshard
from shardproof.oracles import baselines
from shardproof.oracles.baselines import Layout
from shardproof.oracles.dtypes import width
from shardproof.oracles.mesh import as_axes
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts.contract import Claim, Contract, Violation
from shardproof.properties.contracts.described import Signature
from shardproof.properties.contracts.drawing import floats
from shardproof.properties.contracts.forbidden import change_operand, longer
from shardproof.properties.contracts.operation import operation
from shardproof.properties.contracts.roles import Conditions, axes_of

FEATURES = frozenset({"explained_errors", "narrow_accumulation", "x64"})

MOST_DEVICES = 64
"""The largest mesh: a form that gathers has as many copies of an operand as there are devices."""


def roles_of(array: str) -> tuple[str, str]:
    """The roles of an array's dimensions; those of the result have no name in front."""
    return (f"{array}_rows", f"{array}_columns") if array else ("rows", "columns")


def bits(case: Case) -> int:
    """The bits of an element."""
    return width(case.operands[0].numpy_dtype)


def sides(case: Case) -> tuple[int, ...]:
    """B, D and F, or B, D, F and D, of the whole matrices."""
    whole = [o.placement.global_shape(o.block, case.mesh) for o in case.operands]
    return (whole[0][0], *(shape[1] for shape in whole))


def in_any_layout(signature: Signature) -> Conditions:
    """The conditions of matrices of which each is laid out by roles of its own."""
    return Conditions(most=MOST_DEVICES, layouts=tuple(array.roles for array in signature.every))


def layouts_of(case: Case, *names: str) -> list[Layout]:
    """The layouts of these arrays in a case."""
    axes = axes_of(case.roles)
    return [(axes[rows], axes[columns]) for rows, columns in map(roles_of, names)]


def _missing(*operands: str) -> Callable[[Case], int]:
    def least(case: Case) -> int:
        *layouts, result = layouts_of(case, *operands, "")
        return math.ceil(baselines.fewest_received(case.mesh, sides(case), layouts, result) * bits(case) / 8)

    return least


def _missing_of_one(case: Case) -> int:
    lacking = baselines.missing_elements(case.mesh, sides(case), *layouts_of(case, "x", "")).sum(axis=(-2, -1))
    return math.ceil(int(lacking.max(initial=0)) * bits(case) / 8)


def _misshapen(case: Case) -> st.SearchStrategy[Case]:
    """More rows in each block than can be divided as wanted, or a dimension too many if any number can."""
    held, wanted = (case.mesh.axis_size(as_axes(dict(case.roles)[role])) for role in ("x_rows", "rows"))
    rows, columns = case.operands[0].block
    found = [n for n in range(rows + 1, rows + wanted + 1) if held * n % wanted]
    return st.just(change_operand(case, 0, block=(found[0], columns) if found else (rows, columns, 2)))


LHS_RHS = Signature.of(("lhs", "rhs"), ("b@lhs_rows d@lhs_columns", "d@rhs_rows f@rhs_columns"), "b@rows f@columns")
X = "b@x_rows d@x_columns"
X_AND_WEIGHTS = Signature.of(
    ("x", "w_in", "w_out"),
    (X, "d@w_in_rows f@w_in_columns", "f@w_out_rows d@w_out_columns"),
    "b@rows d@columns",
    hidden={"hidden": "b@hidden_rows f@hidden_columns"},
)
X_ALONE = Signature.of(("x",), (X,), "b@rows d@columns")
CONTRACTS: tuple[Contract, ...] = (
    operation(
        "sharded_matmul",
        baselines.matmul,
        LHS_RHS,
        conditions=in_any_layout(LHS_RHS),
        dtypes=floats,
        kinds=("exact", "real", "scaled", "partial", "nan"),
        features=FEATURES,
        violations=(longer("rhs", 1, 0),),
        accumulator="float32 on a device",
        least=_missing("lhs", "rhs"),
        implementations={
            "gathered": Claim(implementations.gathered_matmul),
            "reduced": Claim(implementations.reduced_matmul),
            "automatic": Claim(implementations.automatic_matmul, whole=True),
            "explicit": Claim(implementations.explicit_matmul, whole=True),
        },
    ),
    operation(
        "two_matmuls",
        baselines.two_matmuls,
        X_AND_WEIGHTS,
        conditions=in_any_layout(X_AND_WEIGHTS),
        dtypes=floats,
        kinds=("exact", "real", "exact", "scaled", "nan"),
        features=FEATURES,
        violations=(longer("w_in", 1, 0), longer("w_out", 2, 0)),
        accumulator="float32 on a device",
        least=_missing("x", "w_in", "w_out"),
        implementations={
            "gathered": Claim(implementations.gathered_two_matmuls),
            "automatic": Claim(implementations.automatic_two_matmuls, whole=True),
            "explicit": Claim(implementations.explicit_two_matmuls, whole=True),
            "mixed": Claim(implementations.mixed_two_matmuls, whole=True),
        },
    ),
    operation(
        "reshard",
        baselines.reshard,
        X_ALONE,
        conditions=in_any_layout(X_ALONE),
        dtypes=floats,
        kinds=("distinct", "real", "nan"),
        features=frozenset({"explained_errors", "x64"}),
        violations=(Violation("x", _misshapen),),
        linear=True,
        least=_missing_of_one,
        implementations={
            "exchanged": Claim(reshard.exchanged_reshard),
            "constrained": Claim(reshard.constrained_reshard, whole=True),
            "explicit": Claim(reshard.explicit_reshard, whole=True),
        },
    ),
)
