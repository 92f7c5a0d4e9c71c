"""The contract of projected_cross_entropy: the loss of tokens together with the projection to their classes."""

import numpy as np
from hypothesis import strategies as st

from shardproof.impl import projected_cross_entropy as implementations
from shardproof.impl.cross_entropy import CHUNK
from shardproof.oracles import projected_cross_entropy
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts.contract import Claim, Contract, Scope
from shardproof.properties.contracts.costs import something
from shardproof.properties.contracts.cross_entropy import OPTIONS, SMOOTHER, USUAL, all_ignored, labels_of, params_of
from shardproof.properties.contracts.drawing import integers_below, sides
from shardproof.properties.contracts.forbidden import longer, retyped
from shardproof.properties.contracts.numbers import finite, scaled_to
from shardproof.properties.contracts.operation import Described, Drawn, operation, with_invalid

REACHES = (2.0, 20.0, 200.0)
"""About the largest logits of a data set: nearly alike; a choice; and one that overflows in float32 as a power."""


def _arguments(draw: st.DrawFn, participants: int, scope: Scope) -> Drawn:
    tokens, features, classes = sides.within(draw, scope, 3)
    classes, integers = integers_below(draw, participants, classes, scope, signed=False)
    x, labels = Described((tokens, features), varies=False), Described((tokens,), integers, varies=False)
    return [x, Described((features, classes)), labels], params_of(draw, participants * classes)


def _in_reach(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Logits of all sizes, labels of all classes; `w` is finite, and what of `x` is not is NaN.

    Of every other data set with NaN all tokens are ignored: one that counts makes NaN of the gradient of `w`.
    """
    x, w, labels = arrays
    x, w = np.where(np.isinf(x.astype(np.float64)), np.ones((), x.dtype), x), finite(w)
    reach = REACHES[int(np.signbit(w).sum()) % len(REACHES)]
    most = np.sqrt(reach / np.sqrt(case.operands[0].block[1]))
    classes = case.participants * case.operands[1].block[1]
    spoilt = bool(np.isnan(x.astype(np.float64)).any())
    chosen = labels_of(case, labels, classes)
    if spoilt and np.signbit(w).sum() % 2:
        chosen = all_ignored(case, chosen)
    return [scaled_to(x, most), scaled_to(w, most), chosen]


TOKENS = "elements(labels)*sum_itemsize(x)"
SUMS = f"all_reduce=3+(label_smoothing>0),bytes=(3+(label_smoothing>0))*{TOKENS}"
"""A maximum, the sum of exponentials, the label's logit, and, if smoothed, the sum of all logits."""


def _claim(count: str, columns: str) -> str:
    """Weights are cast in so many chunks of columns, each by itself, once it is wide."""
    of_w = f"replicated(w)*{count}*size(w,0)*{columns}*sum_itemsize(x)"
    sums = f"2*{TOKENS}+replicated(x)*elements(x)*sum_itemsize(x)+{of_w}"
    return f"{SUMS};grad:all_reduce=2+replicated(x)+replicated(w)*{count},bytes={sums}"


SIZE = f"min({CHUNK},max(1,size(w,1)))"

CONTRACTS: tuple[Contract, ...] = (
    operation(
        "projected_cross_entropy",
        projected_cross_entropy.projected_cross_entropy,
        _arguments,
        operands=("x", "w", "labels"),
        options=OPTIONS,
        auxiliary=("labels",),
        alike=("x",),
        invariant=True,
        kinds=with_invalid("real", "exact", "nan", "real"),
        sets=4,
        features=frozenset({"explained_errors", "invalid_indices", "x64"}),
        violations=(longer("w", 1, 0), retyped("labels", 2, "float32"), longer("labels", 2, 0), SMOOTHER),
        adapt=_in_reach,
        # every participant has a gradient for all classes, of which there are as many as participants
        most=64,
        accumulator="float32",
        shapes=(((2048, 1024), None, ""), ((1024, 32768), 1, ""), ((2048,), None, "int32")),
        usual=USUAL,
        least=something(1),
        implementations={
            "plain": Claim(implementations.projected_cross_entropy, communication=_claim("1", "size(w,1)")),
            "chunked": Claim(
                implementations.chunked_projected_cross_entropy, communication=_claim(f"ceil(size(w,1)/{SIZE})", SIZE)
            ),
        },
    ),
)
