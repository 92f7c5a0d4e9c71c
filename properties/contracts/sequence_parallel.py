"""The contract of a multilayer perceptron over a sequence whose positions are sharded."""

from hypothesis import strategies as st

from shardproof.impl import sequence_parallel as implementations
from shardproof.oracles import sequence_parallel
from shardproof.oracles.communication import Cost
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.strategies.shapes import LONG
from shardproof.properties.contracts.contract import Claim, Communication, Contract, Scope, Violation
from shardproof.properties.contracts.costs import bits, something, sum_bits, with_replicas
from shardproof.properties.contracts.floats import float32_accumulator
from shardproof.properties.contracts.forbidden import changed
from shardproof.properties.contracts.matmul import signed
from shardproof.properties.contracts.mistakes import sequence_parallel as mistakes
from shardproof.properties.contracts.operation import APART, Described, Drawn, operation

OWN = frozenset({"empty_blocks", APART, "explained_errors", "x64"})
FEATURES = OWN | {"narrow_accumulation"}

MOST_MEMBERS = 256
"""The largest mesh: every participant has the whole sequence, of as many positions as participants."""


def _arguments(draw: st.DrawFn, participants: int, scope: Scope) -> Drawn:
    small = st.integers(1, 1 if scope.large else 3)
    positions, batch, features, hidden = draw(st.tuples(*[small] * 4), label="positions, batch, features, hidden")
    kind = draw(st.sampled_from(("small",) * 22 + ("long", "long", "empty")), label="small, long or empty")
    if kind == "empty" and "empty_blocks" in scope.features:
        positions = 0
    elif kind == "long" and not scope.large:
        size = draw(st.sampled_from(LONG), label="long side")
        at = draw(st.integers(0, 2), label="which")
        positions, features, hidden = (size if i == at else n for i, n in enumerate((positions, features, hidden)))
    return [
        Described((positions, batch, features), sharding=("over", "free", "whole")),
        Described((features, hidden), sharding=("whole", "over")),
        Described((hidden, features), sharding=("over", "whole")),
    ], {}


def _mismatched(case: Case) -> st.SearchStrategy[Case]:
    features, hidden = case.operands[1].block
    return st.just(changed(case, 1, block=(features + 1, hidden)))


def _more_rows(case: Case) -> st.SearchStrategy[Case]:
    hidden, features = case.operands[2].block
    return st.just(changed(case, 2, block=(hidden + 1, features)))


def _terms(case: Case) -> int:
    """D products for every hidden element, F hidden elements for every result."""
    _, w_in, w_out = case.operands
    return max(w_in.block[0], 1) * max(w_out.block[0] * case.participants, 1)


def _sends(way: str) -> Communication:
    def cost(case: Case, backward: bool) -> Cost:
        positions, batch, features = case.operands[0].block
        return sequence_parallel.mlp_cost(
            way,
            case.participants,
            positions * batch,
            features,
            bits=bits(case),
            sum_bits=sum_bits(case),
            backward=backward,
        )

    return with_replicas(cost, 0, 1, 2)


HIDDEN = "1/6"
"""What is exposed: of 16-bit floats, sums have twice the bytes of what is gathered, and products are as long."""

CONTRACT: Contract = operation(
    "sequence_parallel_mlp",
    sequence_parallel.sequence_parallel_mlp,
    _arguments,
    operands=("x", "w_in", "w_out"),
    kinds=("exact", "real", "special", "nan"),
    sets=4,
    budget="layers",
    features=FEATURES,
    violations=(Violation("w_in", _mismatched), Violation("w_out", _more_rows)),
    most=MOST_MEMBERS,
    terms=_terms,
    degree=3,
    stages=3,  # what is hidden, one participant's sum, and the result
    adapt=signed,
    accumulator=float32_accumulator,
    shapes=(((2048, 4, 2048), 0, ""), ((2048, 8192), 1, ""), ((8192, 2048), 0, "")),
    mistakes=mistakes.MISTAKES,
    leading=0,
    least=something(0, 1, 2),
    implementations={
        "naive": Claim(implementations.sequence_parallel_mlp, OWN, communication=_sends("naive")),
        "overlapped": Claim(
            implementations.overlapped_sequence_parallel_mlp, OWN, communication=_sends("ring"), exposed=HIDDEN
        ),
        "bidirectional": Claim(
            implementations.bidirectional_sequence_parallel_mlp,
            OWN,
            communication=_sends("bidirectional"),
            exposed=HIDDEN,
            directions=2,
        ),
    },
)
