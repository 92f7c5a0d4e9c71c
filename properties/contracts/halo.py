"""The contract of halo_exchange: every participant's block, with its neighbours' edges attached."""

from hypothesis import strategies as st

from shardproof.impl import halo as implementations
from shardproof.oracles import halo
from shardproof.oracles.communication import Cost
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.strategies import dtypes
from shardproof.properties.cases.strategies.making import sampled
from shardproof.properties.contracts.collectives import blocks, dimension
from shardproof.properties.contracts.contract import Claim, Contract, Option, Scope, Violation, of_type
from shardproof.properties.contracts.costs import bits, elements, something
from shardproof.properties.contracts.forbidden import out_of_range
from shardproof.properties.contracts.operation import Described, Drawn, operation

MOST_ROWS = 12
"""So many rows are attached on a side, at most, unless a block has more; on large meshes 3."""

READS = 3
"""A window is at most two whole arrays and a block long: nothing is in it more than three times."""

FEATURES = frozenset({"explained_errors", "negative_dimensions", "replicated_operands", "x64"})


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


def _too_many(argument: str) -> Violation:
    def cases(case: Case) -> st.SearchStrategy[Case]:
        return st.sampled_from((-1, _rows_of_all(case) + 1)).map(lambda rows: case.with_params(**{argument: rows}))

    return Violation(argument, cases)


def _axis(case: Case, value: int) -> bool:
    rank = len(case.operands[0].block)
    return -rank <= value < rank


def _number_of_rows(case: Case, value: int) -> bool:
    """Whether there are so many; of which rows, a wrong axis does not say, and is what is wrong then."""
    return value >= 0 and (not _axis(case, case.keywords["axis"]) or value <= _rows_of_all(case))


ROWS = Option(of_type(int), _number_of_rows)


def _dtypes(scope: Scope, terms: int) -> st.SearchStrategy[str]:
    return dtypes(floating=scope.floating, terms=terms * READS, wide="x64" in scope.features)


def _rows(case: Case, backward: bool) -> Cost:
    n, params = case.operands[0].block[case.keywords["axis"]], case.keywords
    return halo.permutes_cost(
        case.participants, n, elements(case) // n, before=params["before"], after=params["after"], bits=bits(case)
    )


def _edges(case: Case) -> int:
    return something(0)(case) if case.keywords["before"] + case.keywords["after"] else 0


CONTRACT: Contract = operation(
    "halo_exchange",
    halo.halo_exchange,
    _arguments,
    operands=("x",),
    parameters=("before", "after", "axis"),
    options={"axis": Option(of_type(int), _axis), "before": ROWS, "after": ROWS},
    dtypes=_dtypes,
    kinds=("distinct", "exact", "real", "special", "nan", "scaled"),
    features=FEATURES,
    violations=(_too_many("before"), _too_many("after"), out_of_range("axis")),
    reads=lambda case: READS,
    shapes=(((8192, 1024), 0, ""),),
    usual={"before": 1, "after": 1, "axis": 0},
    least=_edges,
    implementations={
        "permutes": Claim(implementations.halo_exchange, FEATURES, communication=_rows),
    },
)
