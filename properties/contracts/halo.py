"""The contract of halo_exchange: every participant's block, with its neighbours' edges attached."""

from typing import Any

from hypothesis import strategies as st

from shardproof.impl import halo as implementations
from shardproof.oracles import halo
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.strategies.making import sampled
from shardproof.properties.contracts.collectives import blocks, dimension
from shardproof.properties.contracts.contract import (
    DIMENSION,
    Claim,
    Contract,
    Option,
    Scope,
    at_least_a_byte,
    is_dimension,
    of_type,
)
from shardproof.properties.contracts.costs import transposed
from shardproof.properties.contracts.forbidden import out_of_range, wrong_value
from shardproof.properties.contracts.operation import Described, Drawn, moved_dtypes, operation

MOST_ROWS = 12
"""The most rows that are attached on a side, unless a block has more; on large meshes 3."""

READS = 3
"""A window is at most two whole arrays and a block long: nothing is in it more than three times."""


def _arguments(draw: st.DrawFn, participants: int, scope: Scope) -> Drawn:
    block = draw(blocks(scope, min_rank=1).filter(lambda shape: 0 not in shape))
    axis = dimension(draw, len(block), scope, "axis")
    n = block[axis]
    # up to a block, which is what people think of; up to two; and up to the whole array
    most = min(n * participants, max(n, 3 if scope.large else MOST_ROWS))
    widths = (0, n), (min(n + 1, most), min(2 * n, most)), (0, most)
    rows = sampled(widths).flatmap(lambda width: st.integers(*width))
    return [Described(block)], {"before": draw(rows), "after": draw(rows), "axis": axis}


def _rows_of_all(case: Case) -> int:
    return case.participants * case.operands[0].block[case.keywords["axis"]]


def _number_of_rows(case: Case, value: int) -> bool:
    """True if that many rows exist along the axis, unless the axis is wrong itself."""
    return value >= 0 and (not is_dimension(case, case.keywords["axis"]) or value <= _rows_of_all(case))


ROWS = Option(of_type(int), _number_of_rows)


def _dtypes(scope: Scope, devices: int, *given: Any) -> st.SearchStrategy[str]:
    return moved_dtypes(scope, devices * READS)


TAIL, HEAD = "min(rows,max(0,before-(d-1)*rows))", "min(rows,max(0,after-(p-d-1)*rows))"
"""The rows of the participant d places behind that are needed in front of a block, and behind it.

It is p - d places ahead as well: where the two make up its block, they are sent in one permute.
"""

CONTRACTS: tuple[Contract, ...] = (
    operation(
        "halo_exchange",
        halo.halo_exchange,
        _arguments,
        operands=("x",),
        options={"before": ROWS, "after": ROWS, "axis": DIMENSION},
        dtypes=_dtypes,
        kinds=("distinct", "exact", "real", "special", "nan", "scaled"),
        features=frozenset({"explained_errors", "negative_dimensions", "replicated_operands", "x64"}),
        violations=(
            *(wrong_value(side, lambda case: (-1, _rows_of_all(case) + 1)) for side in ("before", "after")),
            out_of_range("axis"),
        ),
        linear=True,
        shapes=(((8192, 1024), 0, ""),),
        usual={"before": 1, "after": 1, "axis": 0},
        least=lambda case: at_least_a_byte(0)(case) if case.keywords["before"] + case.keywords["after"] else 0,
        sizes={"rows": lambda case: case.operands[0].block[case.keywords["axis"]]},
        implementations={
            "permutes": Claim(
                implementations.halo_exchange,
                communication=transposed(
                    f"permute=sum(1 if {TAIL}+{HEAD}>=rows else ({TAIL}>0)+({HEAD}>0) for d in range(1,p)),"
                    f"bytes=x/rows*sum(min(rows,{TAIL}+{HEAD}) for d in range(1,p)),steps=1"
                ),
            )
        },
    ),
)
