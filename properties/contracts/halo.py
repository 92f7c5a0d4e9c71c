"""The contract of halo_exchange: every participant's block, with its neighbours' edges attached."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from shardproof.impl import halo as implementations
from shardproof.oracles import halo
from shardproof.properties.cases import Case
from shardproof.properties.contracts.collectives import blocks, dimension
from shardproof.properties.contracts.contract import Claim, Contract, Option, Scope, Violation
from shardproof.properties.contracts.operation import Described, Drawn, operation, rewritten
from shardproof.properties.strategies import dtypes

MOST_ROWS = 12
"""So many rows are attached on a side, at most, unless a block has more; on large meshes 3."""

READS = 3
"""A window is at most two whole arrays and a block long: nothing is in it more than three times."""

FEATURES = frozenset({"explained_errors", "negative_dimensions", "replicated_operands", "x64"})


def _arguments(draw: st.DrawFn, members: int, scope: Scope) -> Drawn:
    block = draw(blocks(scope, min_rank=1).filter(lambda shape: 0 not in shape))
    axis = dimension(draw, len(block), scope, "axis")
    n = block[axis]
    # less than a block, which is what people think of; more than one; and up to the whole array
    most = min(n * members, max(n, 3 if scope.large else MOST_ROWS))
    near = st.integers(0, n)
    rows = st.tuples(st.booleans(), near, st.integers(0, most)).map(lambda drawn: drawn[2] if drawn[0] else drawn[1])
    return [Described(block)], {"before": draw(rows), "after": draw(rows), "axis": axis}


def _rows_of_all(case: Case) -> int:
    return case.members * case.operands[0].block[case.keywords["axis"]]


def _rows(argument: str) -> Callable[[Case], st.SearchStrategy[Case]]:
    def cases(case: Case) -> st.SearchStrategy[Case]:
        return st.sampled_from((-1, _rows_of_all(case) + 1)).map(lambda rows: rewritten(case, **{argument: rows}))

    return cases


def _out_of_range(case: Case) -> st.SearchStrategy[Case]:
    rank = len(case.operands[0].block)
    return st.sampled_from((rank, -rank - 1)).map(lambda axis: rewritten(case, axis=axis))


def _is_number(value: Any) -> bool:
    return type(value) is int


ROWS = Option(_is_number, lambda case, value: 0 <= value <= _rows_of_all(case))


def _axis(case: Case, value: int) -> bool:
    rank = len(case.operands[0].block)
    return -rank <= value < rank


CONTRACT: Contract = operation(
    "halo_exchange",
    halo.halo_exchange,
    _arguments,
    operands=("x",),
    parameters=("before", "after", "axis"),
    options={"axis": Option(_is_number, _axis), "before": ROWS, "after": ROWS},
    dtypes=lambda scope, terms: dtypes(floating=scope.floating, terms=terms, wide="x64" in scope.features),
    kinds=("distinct", "exact", "real", "special", "nan", "scaled"),
    features=FEATURES,
    violations=(
        Violation("before", _rows("before")),
        Violation("after", _rows("after")),
        Violation("axis", _out_of_range),
    ),
    reads=READS,
    implementations={
        "permutes": Claim(implementations.halo_exchange, FEATURES),
        "gathered": Claim(implementations.gathered_halo_exchange, FEATURES),
    },
)
