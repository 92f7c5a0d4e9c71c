"""The contract of vocab_parallel_cross_entropy: the loss of tokens whose classes are sharded."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardproof.impl import cross_entropy as implementations
from shardproof.oracles import cross_entropy
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.strategies.making import sampled
from shardproof.properties.contracts.call import Option, of_type
from shardproof.properties.contracts.contract import Claim, Contract, Scope
from shardproof.properties.contracts.costs import something
from shardproof.properties.contracts.drawing import further_dimensions, integers_below, sides
from shardproof.properties.contracts.forbidden import longer, retyped, valued
from shardproof.properties.contracts.operation import APART, Described, Drawn, operation, with_invalid

LARGEST = 80.0
"""The magnitude of large logits: their exponentials are at both ends of float32, and beyond those of float16."""

SMOOTHINGS = (0.0, 0.125, 0.1, 1.0)
ELSEWHERE = (-1, -100, 255)
"""What tokens are ignored by where that is the number of no class, or of none that there usually is."""


def _arguments(draw: st.DrawFn, participants: int, scope: Scope) -> Drawn:
    tokens, classes = sides.within(draw, scope, 2)
    classes, integers = integers_below(draw, participants, classes, scope)
    more = further_dimensions(draw, scope)
    labels = Described((*more, tokens), integers, varies=False)
    return [Described((*more, tokens, classes)), labels], params_of(draw, participants * classes)


def params_of(draw: st.DrawFn, classes: int) -> dict[str, Any]:
    """The keyword arguments of a loss of so many classes."""
    indices = st.one_of(st.sampled_from(ELSEWHERE), st.integers(0, classes - 1))
    return {
        "label_smoothing": draw(sampled(SMOOTHINGS), label="label_smoothing"),
        "ignore_index": draw(indices, label="ignore_index"),
    }


def _some_large(logits: np.ndarray) -> np.ndarray:
    """Finite logits; of a third of the data sets of small ones, nearly all are large, so that exponentials overflow."""
    numbers = logits.astype(np.float64)
    numbers[np.isinf(numbers)] = 1
    known = np.where(np.isnan(numbers), 0, numbers)
    if np.abs(known).max(initial=0) <= LARGEST and np.count_nonzero(known > 0) % 3 == 0:
        numbers = np.clip(numbers * 64, -LARGEST, LARGEST)
    return numbers.astype(logits.dtype)


def _labelled(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Labels of all classes; logits are finite, or NaN. Of half of the data sets with NaN, all tokens are ignored."""
    logits, labels = arrays
    classes = case.participants * case.operands[0].block[-1]
    spoilt = bool(np.isnan(logits.astype(np.float64)).any())
    chosen = labels_of(case, labels, classes)
    if spoilt and np.signbit(logits).sum() % 2:
        chosen = all_ignored(case, chosen)
    return [_some_large(logits), chosen]


def all_ignored(case: Case, labels: np.ndarray) -> np.ndarray:
    """The `ignore_index` for all labels, if their dtype has it."""
    index, info = case.keywords["ignore_index"], np.iinfo(labels.dtype)
    return np.full_like(labels, index) if info.min <= index <= info.max else labels


def labels_of(case: Case, labels: np.ndarray, classes: int) -> np.ndarray:
    """Labels of all classes, one in four of them ignored, or all.

    Where `special` data has extremes of their dtype, labels are out of range: far out, or just so.

    Arguments:
        case: the case, which has the `ignore_index`.
        labels: integers as they are drawn.
        classes: how many classes there are.
    """
    info, wide = np.iinfo(labels.dtype), labels.astype(np.int64)
    mixed = wide * 7919 + np.arange(labels.size).reshape(labels.shape) * 31
    chosen = mixed % classes
    if classes - 1 == info.max:  # the last one, which a dtype with room for no more makes of -1
        chosen = np.where(mixed // classes % 4 == 1, classes - 1, chosen)
    if case.data[0].kind == "special":
        far, before, behind = (labels == extreme for extreme in (info.max, info.min, info.max - 1))
        chosen = np.where(before & (info.min < 0), -1 - chosen, chosen)
        chosen = np.where(far, wide, np.where(behind, classes + chosen % 2, chosen))
    index = case.keywords["ignore_index"]
    if info.min <= index <= info.max:
        some = mixed // classes % 4 == 0
        chosen = np.where(some | (int(np.abs(wide).sum()) % 7 == 6), index, chosen)
    return chosen.astype(labels.dtype)


OPTIONS = {
    "label_smoothing": Option(of_type(float), lambda case, value: 0 <= value <= 1),
    "ignore_index": Option(of_type(int)),
}
USUAL = {"label_smoothing": 0.0, "ignore_index": -1}
SMOOTHER = valued("label_smoothing", lambda case: (1.5, -0.5))

TOKENS = "elements(labels)*sum_itemsize(logits)"
SUMS = f"all_reduce=3+(label_smoothing>0),bytes=(3+(label_smoothing>0))*{TOKENS}"
"""A maximum, the sum of exponentials, the label's logit, and, if smoothed, the sum of all logits."""

SIZE = f"min({implementations.CHUNK},max(1,size(logits,-1)))"
COUNT = f"ceil(size(logits,-1)/{SIZE})"

CONTRACTS: tuple[Contract, ...] = (
    operation(
        "vocab_parallel_cross_entropy",
        cross_entropy.vocab_parallel_cross_entropy,
        _arguments,
        operands=("logits", "labels"),
        options=OPTIONS,
        auxiliary=("labels",),
        invariant=True,
        kinds=with_invalid("exact", "real", "distinct", "scaled", "nan", "real"),
        features=frozenset({"any_rank", "explained_errors", "invalid_indices", APART, "replicated_operands", "x64"}),
        violations=(retyped("labels", 1, "float32"), longer("labels", 1, -1), SMOOTHER),
        adapt=_labelled,
        # every participant has a gradient for all classes, of which there are as many as participants
        most=256,
        accumulator="float32",
        shapes=(((2048, 32768), 1, ""), ((2048,), None, "int32")),
        usual=USUAL,
        leading=0,
        least=something(0),
        implementations={
            "sums": Claim(
                implementations.vocab_parallel_cross_entropy,
                communication=f"{SUMS};grad:all_reduce=2+replicated(logits),bytes=2*{TOKENS}+replicated(logits)*elements(logits)*sum_itemsize(logits)",
            ),
            "chunked": Claim(
                implementations.chunked_cross_entropy,
                # every chunk is cast by itself, once it is wide
                communication=f"{SUMS};grad:all_reduce=2+replicated(logits)*{COUNT},bytes=2*{TOKENS}+replicated(logits)*{COUNT}*{SIZE}*{TOKENS}",
            ),
        },
    ),
)
