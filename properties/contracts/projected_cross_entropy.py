"""The contract of projected_cross_entropy: the loss of tokens together with the projection to their classes."""

import numpy as np
from hypothesis import strategies as st

from shardproof.impl import projected_cross_entropy as implementations
from shardproof.impl.cross_entropy import CHUNK
from shardproof.oracles import projected_cross_entropy
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.strategies.making import sampled
from shardproof.properties.cases.strategies.shapes import LONG
from shardproof.properties.contracts.call import Option, of_type
from shardproof.properties.contracts.contract import Claim, Contract, Scope, Violation
from shardproof.properties.contracts.costs import something
from shardproof.properties.contracts.cross_entropy import ELSEWHERE, SMOOTHINGS, all_ignored, labels_of
from shardproof.properties.contracts.drawing import all_of_a_dtype, integers_below
from shardproof.properties.contracts.floats import scaled_to
from shardproof.properties.contracts.forbidden import changed
from shardproof.properties.contracts.operation import Described, Drawn, operation

FEATURES = frozenset({"explained_errors", "invalid_indices", "x64"})

MOST_MEMBERS = 64
"""The largest mesh: every participant has a gradient for all classes, of which there are as many as participants."""

REACHES = (2.0, 20.0, 200.0)
"""About the largest logits of a data set: nearly alike; a choice; and one that overflows in float32 as a power."""


def _arguments(draw: st.DrawFn, participants: int, scope: Scope) -> Drawn:
    small = st.integers(1, 2 if scope.large else 4)
    tokens, features, classes = draw(st.tuples(small, small, small), label="tokens, features, classes")
    if not scope.large and draw(st.integers(0, 9), label="long") == 9:
        classes = draw(sampled(LONG), label="long side")
    integers = integers_below(draw, participants * classes, signed=False)
    indices = st.one_of(st.sampled_from(ELSEWHERE), st.integers(0, participants * classes - 1))
    if not scope.large and (every := all_of_a_dtype(draw, participants)):
        (classes, integers), indices = every, sampled(ELSEWHERE)
    params = {
        "label_smoothing": draw(sampled(SMOOTHINGS), label="label_smoothing"),
        "ignore_index": draw(indices, label="ignore_index"),
    }
    arguments = [
        Described((tokens, features), varies=False),
        Described((features, classes)),
        Described((tokens,), integers, varies=False),
    ]
    return arguments, params


def _kinds(scope: Scope) -> tuple[str, ...]:
    usual = ("real", "exact", "nan", "real")
    return (*usual, "special") if "invalid_indices" in scope.features else usual


def _in_reach(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Logits of all sizes, labels of all classes; `w` is finite, and what of `x` is not is NaN.

    Of every other data set with NaN all tokens are ignored: one that counts makes NaN of the gradient of `w`.
    """
    x, w, labels = arrays
    x, w = (np.where(np.isinf(a.astype(np.float64)), np.ones((), a.dtype), a) for a in (x, w))
    w = np.where(np.isnan(w.astype(np.float64)), np.ones((), w.dtype), w)
    reach = REACHES[int(np.signbit(w).sum()) % len(REACHES)]
    most = np.sqrt(reach / np.sqrt(case.operands[0].block[1]))
    classes = case.participants * case.operands[1].block[1]
    spoilt = bool(np.isnan(x.astype(np.float64)).any())
    chosen = labels_of(case, labels, classes)
    if spoilt and np.signbit(w).sum() % 2:
        chosen = all_ignored(case, chosen)
    return [scaled_to(x, most), scaled_to(w, most), chosen]


def _another_row(case: Case) -> st.SearchStrategy[Case]:
    features, classes = case.operands[1].block
    return st.just(changed(case, 1, block=(features + 1, classes)))


def _numbers(case: Case) -> st.SearchStrategy[Case]:
    return st.just(changed(case, 2, dtype="float32"))


def _more_labels(case: Case) -> st.SearchStrategy[Case]:
    return st.just(changed(case, 2, block=(case.operands[2].block[0] + 1,)))


def _smoother(case: Case) -> st.SearchStrategy[Case]:
    return st.sampled_from((1.5, -0.5)).map(lambda smoothing: case.with_params(label_smoothing=smoothing))


TOKENS = "elements(labels)*sum_itemsize(x)"
SUMS = f"all_reduce=3+(label_smoothing>0),bytes=(3+(label_smoothing>0))*{TOKENS}"
"""A maximum, the sum of exponentials, the label's logit, and, if smoothed, the sum of all logits."""


def _claim(count: str, columns: str) -> str:
    """Weights are cast in so many chunks of columns, each by itself, once it is wide."""
    of_w = f"replicated(w)*{count}*size(w,0)*{columns}*sum_itemsize(x)"
    sums = f"2*{TOKENS}+replicated(x)*elements(x)*sum_itemsize(x)+{of_w}"
    return f"{SUMS};grad:all_reduce=2+replicated(x)+replicated(w)*{count},bytes={sums}"


SIZE = f"min({CHUNK},max(1,size(w,1)))"

CONTRACT: Contract = operation(
    "projected_cross_entropy",
    projected_cross_entropy.projected_cross_entropy,
    _arguments,
    operands=("x", "w", "labels"),
    options={
        "label_smoothing": Option(of_type(float), lambda case, value: 0 <= value <= 1),
        "ignore_index": Option(of_type(int)),
    },
    auxiliary=frozenset({"labels"}),
    alike=frozenset({"x"}),
    invariant=True,
    kinds=_kinds,
    sets=4,
    features=FEATURES,
    violations=(
        Violation("w", _another_row),
        Violation("labels", _numbers),
        Violation("labels", _more_labels),
        Violation("label_smoothing", _smoother),
    ),
    adapt=_in_reach,
    most=MOST_MEMBERS,
    accumulator="float32",
    shapes=(((2048, 1024), None, ""), ((1024, 32768), 1, ""), ((2048,), None, "int32")),
    usual={"label_smoothing": 0.0, "ignore_index": -1},
    least=something(1),
    implementations={
        "plain": Claim(implementations.projected_cross_entropy, FEATURES, communication=_claim("1", "size(w,1)")),
        "chunked": Claim(
            implementations.chunked_projected_cross_entropy,
            FEATURES,
            communication=_claim(f"ceil(size(w,1)/{SIZE})", SIZE),
        ),
    },
)
