"""The contracts of a multilayer perceptron over a sequence whose positions are sharded, alone and behind a norm."""

import numpy as np
from hypothesis import strategies as st

from shardproof.impl import sequence_parallel as implementations
from shardproof.oracles import sequence_parallel
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.strategies.making import sampled
from shardproof.properties.cases.strategies.shapes import LONG
from shardproof.properties.contracts.call import Option, of_type
from shardproof.properties.contracts.claims import added_up, replica_bytes, replicas
from shardproof.properties.contracts.contract import (
    Claim,
    Contract,
    Scope,
    Violation,
)
from shardproof.properties.contracts.costs import something
from shardproof.properties.contracts.forbidden import changed
from shardproof.properties.contracts.matmul import signed
from shardproof.properties.contracts.norms import EPSILONS
from shardproof.properties.contracts.operation import APART, Described, Drawn, operation

OWN = frozenset({"empty_blocks", APART, "explained_errors", "x64"})
FEATURES = OWN | {"narrow_accumulation"}

MOST_MEMBERS = 128
"""The largest mesh: every participant has the whole sequence, of as many positions as participants."""


def _arguments(draw: st.DrawFn, participants: int, scope: Scope) -> Drawn:
    small = st.integers(1, 1 if scope.large else 3)
    positions, batch, features, hidden = draw(st.tuples(*[small] * 4), label="positions, batch, features, hidden")
    kind = draw(sampled(("small",) * 22 + ("long", "long", "empty")), label="small, long or empty")
    if kind == "empty" and "empty_blocks" in scope.features:
        positions = 0
    elif kind == "long" and not scope.large:
        size = draw(sampled(LONG), label="long side")
        at = draw(st.integers(0, 3), label="which")
        sides = (positions, features, hidden, batch)
        positions, features, hidden, batch = (size if i == at else n for i, n in enumerate(sides))
    return [
        Described((positions, batch, features), sharding=("over", "free", "whole")),
        Described((features, hidden), sharding=("whole", "over")),
        Described((hidden, features), sharding=("over", "whole")),
    ], {}


def _arguments_of_norm(draw: st.DrawFn, participants: int, scope: Scope) -> Drawn:
    (x, *weights), _ = _arguments(draw, participants, scope)
    epsilon = draw(sampled(EPSILONS), label="epsilon")
    return [x, Described(x.block[-1:], sharding=("whole",)), *weights], {"epsilon": epsilon}


def _clear_of_zero(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Hidden values that are far from zero, as in `signed`: a scale is above zero, so that features keep their signs.

    No position is all zeros, where without epsilon it would be NaN.
    """
    x, scale, w_in, w_out = arrays
    sizes = np.abs(scale.astype(np.float64))
    scale = np.where(sizes > 0, sizes, 1).astype(scale.dtype)
    # what is turned beside that depends on how large features are, and the norm changes that
    x, w_in = (_signs(array, axis) for array, axis in ((x, -2), (w_in, -1)))
    return [x, scale, w_in, w_out]


def _signs(array: np.ndarray, axis: int) -> np.ndarray:
    sizes = np.abs(array.astype(np.float64))
    shape = [1] * array.ndim
    shape[axis] = -1
    signs = np.where(np.arange(array.shape[axis]) % 3 == 1, -1.0, 1.0).reshape(shape)
    return (np.where(sizes > 0, sizes, 1) * signs).astype(array.dtype)


def _mismatched(case: Case) -> st.SearchStrategy[Case]:
    at = len(case.operands) - 2
    features, hidden = case.operands[at].block
    return st.just(changed(case, at, block=(features + 1, hidden)))


def _more_rows(case: Case) -> st.SearchStrategy[Case]:
    at = len(case.operands) - 1
    hidden, features = case.operands[at].block
    return st.just(changed(case, at, block=(hidden + 1, features)))


def _another_scale(case: Case) -> st.SearchStrategy[Case]:
    return st.just(changed(case, 1, block=(case.operands[1].block[0] + 1,)))


def _negative(case: Case) -> st.SearchStrategy[Case]:
    return st.just(case.with_params(epsilon=-1.0))


HIDDEN = "1/6"
"""What is exposed: of 16-bit floats, sums have twice the bytes of what is gathered, and products are as long."""

WIDE = "elements(x)*sum_itemsize(x)"
NAIVE = (
    f"all_gather=1,all_gather_bytes=x,reduce_scatter=1,reduce_scatter_bytes=p*{WIDE};"
    f"grad:all_gather=2,all_gather_bytes=x+{WIDE},reduce_scatter=1,reduce_scatter_bytes=p*x"
)
"""The input is gathered, and a sum of as many elements scattered; backward the input is gathered again."""

RING = f"permute=2*(p-1),bytes=(p-1)*(x+{WIDE});grad:permute=3*(p-1),permute_bytes=(p-1)*(2*x+{WIDE})"
HALVES = "(p-1)*(2 if size(x,0)*size(x,1)>1 else 1)"
BOTH_WAYS = (
    f"permute=2*{HALVES},bytes=(p-1)*(x+{WIDE}),steps=2*(p-1);"
    f"grad:permute=3*{HALVES},permute_bytes=(p-1)*(2*x+{WIDE}),steps=3*(p-1)"
)
OF_MLP, OF_NORM = ("x", "w_in", "w_out"), ("x", "scale", "w_in", "w_out")
SUMS = added_up(*OF_MLP)
COUNT, SIZE = replicas(*OF_NORM), f"{replica_bytes('w_in', 'w_out')}+{replica_bytes('x', 'scale', wide=True)}"
NORM_SUMS = f"all_reduce={COUNT},all_reduce_bytes={SIZE}"
"""The scale's gradient is added up in the accumulator's dtype, as x is."""


def _all_but_sums(directions: int) -> str:
    """What is exposed of the normed one: besides, the sum of the scale's gradient, behind which nothing is left to do.

    It is 2 (p - 1) / p of its bytes, less than twice, beside what permutes send, each way round.
    """
    summed, sent = f"2*({SIZE})", f"(p-1)*(3*x+2*{WIDE})"
    return f"exposed<=min(1,{HIDDEN}+{summed}/max(1,{summed}+{sent}//{directions})),directions={directions}"


MLP: Contract = operation(
    "sequence_parallel_mlp",
    sequence_parallel.sequence_parallel_mlp,
    _arguments,
    operands=("x", "w_in", "w_out"),
    kinds=("exact", "real", "special", "nan"),
    sets=4,
    features=FEATURES,
    violations=(Violation("w_in", _mismatched), Violation("w_out", _more_rows)),
    most=MOST_MEMBERS,
    adapt=signed,
    accumulator="float32 on a device",
    shapes=(((2048, 4, 2048), 0, ""), ((2048, 8192), 1, ""), ((8192, 2048), 0, "")),
    leading=0,
    least=something(0, 1, 2),
    implementations={
        "naive": Claim(implementations.sequence_parallel_mlp, OWN, communication=f"{NAIVE},{SUMS}"),
        "overlapped": Claim(
            implementations.overlapped_sequence_parallel_mlp,
            OWN,
            communication=f"{RING},{SUMS}",
            overlap=f"exposed<={HIDDEN}",
        ),
        "bidirectional": Claim(
            implementations.bidirectional_sequence_parallel_mlp,
            OWN,
            communication=f"{BOTH_WAYS}+{replicas(*OF_MLP)},{SUMS}",
            overlap=f"exposed<={HIDDEN},directions=2",
        ),
    },
)

NORMALISED: Contract = operation(
    "normalised_sequence_parallel_mlp",
    sequence_parallel.normalised_sequence_parallel_mlp,
    _arguments_of_norm,
    operands=("x", "scale", "w_in", "w_out"),
    options={"epsilon": Option(of_type(float), lambda case, value: value >= 0)},
    alike=frozenset({"scale"}),
    kinds=("real", "exact", "distinct", "real"),
    sets=4,
    features=OWN,
    violations=(
        Violation("scale", _another_scale),
        Violation("epsilon", _negative),
        Violation("w_in", _mismatched),
        Violation("w_out", _more_rows),
    ),
    most=MOST_MEMBERS,
    adapt=_clear_of_zero,
    shapes=(((2048, 4, 2048), 0, ""), ((2048,), None, ""), ((2048, 8192), 1, ""), ((8192, 2048), 0, "")),
    usual={"epsilon": 1e-6},
    leading=0,
    least=something(0, 2, 3),
    implementations={
        "naive": Claim(implementations.normalised_sequence_parallel_mlp, OWN, communication=f"{NAIVE},{NORM_SUMS}"),
        "overlapped": Claim(
            implementations.overlapped_normalised_sequence_parallel_mlp,
            OWN,
            communication=f"{RING},{NORM_SUMS}",
            overlap=_all_but_sums(1),
        ),
        "bidirectional": Claim(
            implementations.bidirectional_normalised_sequence_parallel_mlp,
            OWN,
            communication=f"{BOTH_WAYS}+{COUNT},{NORM_SUMS}",
            overlap=_all_but_sums(2),
        ),
    },
)

CONTRACTS: tuple[Contract, ...] = (MLP, NORMALISED)
