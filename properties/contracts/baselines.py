"""The contracts of matrices in any layout: products by hand and by compilers, and a change of layout."""

import math

from hypothesis import strategies as st

from shardproof.impl import baselines as implementations
from shardproof.impl import reshard
from shardproof.oracles import baselines
from shardproof.oracles.dtypes import width
from shardproof.oracles.mesh import as_axes
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts.contract import Claim, Contract, Violation
from shardproof.properties.contracts.described import Signature
from shardproof.properties.contracts.drawing import floats
from shardproof.properties.contracts.forbidden import change_operand, longer
from shardproof.properties.contracts.operation import operation
from shardproof.properties.contracts.roles import Conditions

FEATURES = frozenset({"explained_errors", "narrow_accumulation", "x64"})

MOST_DEVICES = 64
"""The largest mesh: a form that gathers has as many copies of an operand as there are devices."""


def in_any_layout(signature: Signature) -> Conditions:
    """The conditions of matrices of which each is laid out by roles of its own."""
    return Conditions(most=MOST_DEVICES, layouts=tuple(array.roles for array in signature.every))


def _missing(case: Case) -> int:
    """The bytes that some device must receive at least of matrices that are multiplied, or of one that is moved."""
    wholes = [o.placement.global_shape(o.block, case.mesh) for o in case.operands]
    sides = (wholes[0][0], *(columns for _, columns in wholes))  # B, D and F, or B, D, F and D
    assert case.contract.call.placed is not None
    placed = (*(o.placement for o in case.operands), *case.contract.call.placed(case))
    *layouts, result = [(rows, columns) for rows, columns in (one.spec for one in placed)]
    if len(layouts) > 1:
        count = baselines.fewest_received(case.mesh, sides, layouts, result)
    else:
        lacking = baselines.missing_elements(case.mesh, sides, layouts[0], result).sum(axis=(-2, -1))
        count = int(lacking.max(initial=0))
    return math.ceil(count * width(case.operands[0].numpy_dtype) / 8)


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
        least=_missing,
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
        least=_missing,
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
        least=_missing,
        implementations={
            "exchanged": Claim(reshard.exchanged_reshard),
            "constrained": Claim(reshard.constrained_reshard, whole=True),
            "explicit": Claim(reshard.explicit_reshard, whole=True),
        },
    ),
)
