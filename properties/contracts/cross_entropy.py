"""The contracts of the loss of tokens whose classes are sharded, given their logits, or with the projection to them."""

from functools import partial

import numpy as np
from hypothesis import strategies as st

from shardproof.impl import cross_entropy as implementations
from shardproof.oracles import cross_entropy
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts.contract import Claim, Contract, Option, of_type
from shardproof.properties.contracts.described import Array
from shardproof.properties.contracts.drawing import Drawn, Given, draw_small_sizes, integers_below
from shardproof.properties.contracts.forbidden import longer, wrong_dtype, wrong_value
from shardproof.properties.contracts.numbers import finite, scaled_to, some_out_of_range
from shardproof.properties.contracts.operation import BASIC, INDEPENDENT, operation, with_invalid

LARGEST = 80.0
"""The magnitude of large logits: their exponentials are at both ends of float32, and beyond those of float16."""

REACHES = (2.0, 20.0, 200.0)
"""About the largest logits of a data set: nearly equal; a choice; and one that overflows in float32 as a power."""

ELSEWHERE = (-1, -100, 255)
"""Labels of ignored tokens that are the number of no class, or of none as a rule."""


def _draw_sizes(draw: st.DrawFn, given: Given, *, signed: bool = True) -> Drawn:
    """Sizes with a dtype of labels, and an ignored index that is the number of a class or of none."""
    sizes = draw_small_sizes(draw, given).sizes
    sizes["classes"], integers = integers_below(draw, sizes["classes"], given, signed=signed)
    indices = st.one_of(st.sampled_from(ELSEWHERE), st.integers(0, given.participants * sizes["classes"] - 1))
    return Drawn(sizes, {"ignore_index": draw(indices, label="ignore_index")}, {"labels": integers})


def _some_large(logits: np.ndarray) -> np.ndarray:
    """Finite logits; in a third of the data sets of small ones, nearly all are made large: exponentials overflow."""
    numbers = logits.astype(np.float64)
    numbers[np.isinf(numbers)] = 1
    known = np.where(np.isnan(numbers), 0, numbers)
    if np.abs(known).max(initial=0) <= LARGEST and np.count_nonzero(known > 0) % 3 == 0:
        numbers = np.clip(numbers * 64, -LARGEST, LARGEST)
    return numbers.astype(logits.dtype)


def _labelled(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Labels of all classes; logits are finite, or NaN."""
    logits, labels = arrays
    return [_some_large(logits), _labels(case, labels, case.operands[0].block[-1], logits, logits)]


def _labels(case: Case, labels: np.ndarray, each: int, known: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Labels of classes, `each` participant having that many, in place of integers: one in four is ignored, or all.

    In half of the data sets where something `known` is NaN all tokens are ignored, as the signs of what is `drawn` say.
    """
    classes = case.participants * each
    info, wide = np.iinfo(labels.dtype), labels.astype(np.int64)
    mixed = wide * 7919 + np.arange(labels.size).reshape(labels.shape) * 31
    chosen = mixed % classes
    if classes - 1 == info.max:  # the last one, which a dtype with room for no more makes of -1
        chosen = np.where(mixed // classes % 4 == 1, classes - 1, chosen)
    chosen = some_out_of_range(case, labels, chosen, classes)
    index = case.keywords["ignore_index"]
    if info.min <= index <= info.max:
        spoilt = bool(np.isnan(known.astype(np.float64)).any() and np.signbit(drawn).sum() % 2)
        every = spoilt or int(np.abs(wide).sum()) % 7 == 6
        chosen = np.where((mixed // classes % 4 == 0) | every, index, chosen)
    return chosen.astype(labels.dtype)


def _in_reach(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Logits of all sizes, labels of all classes; `w` is finite, and `x` finite or NaN: then a gradient of `w` is."""
    x, w, labels = arrays
    x, w = np.where(np.isinf(x.astype(np.float64)), np.ones((), x.dtype), x), finite(w)
    reach = REACHES[int(np.signbit(w).sum()) % len(REACHES)]
    most = np.sqrt(reach / np.sqrt(case.operands[0].block[1]))
    chosen = _labels(case, labels, case.operands[1].block[1], x, w)
    return [scaled_to(x, most), scaled_to(w, most), chosen]


OPTIONS = {
    "label_smoothing": Option(of_type(float), lambda case, value: 0 <= value <= 1, (0.0, 0.125, 0.1, 1.0)),
    "ignore_index": Option(of_type(int)),
}
USUAL = {"label_smoothing": 0.0, "ignore_index": -1}
SMOOTHER = wrong_value("label_smoothing", lambda case: (1.5, -0.5))


def _claim(x: str, count: str, summed: str) -> str:
    """A maximum, the sum of exponentials, the label's logit, and, if smoothed, the sum of all logits.

    The gradient has two sums, and `count` of replicas, of `summed` bytes.
    """
    tokens = f"elements(labels)*sum_itemsize({x})"
    forward = f"all_reduce=3+(label_smoothing>0),bytes=(3+(label_smoothing>0))*{tokens}"
    return f"{forward};grad:all_reduce=2+{count},bytes=2*{tokens}+{summed}"


def _of_weights(count: str, columns: str) -> str:
    """Weights are cast in `count` chunks of columns, each once it is wide, and x as it is."""
    of_w = f"replicated(w)*{count}*size(w,0)*{columns}*sum_itemsize(x)"
    return _claim("x", f"replicated(x)+replicated(w)*{count}", f"replicated(x)*elements(x)*sum_itemsize(x)+{of_w}")


def _in_chunks(columns: str) -> tuple[str, str]:
    """The number of chunks, and the columns of each."""
    size = f"min({implementations.CHUNK},max(1,{columns}))"
    return f"ceil({columns}/{size})", size


CONTRACTS: tuple[Contract, ...] = (
    operation(
        "vocab_parallel_cross_entropy",
        cross_entropy.vocab_parallel_cross_entropy,
        {"logits": "leading tokens classes@axis_name", "labels": Array("leading tokens", "int32")},
        draw_sizes=_draw_sizes,
        options=OPTIONS,
        invariant=True,
        kinds=with_invalid("exact", "real", "distinct", "scaled", "nan", "real"),
        features=BASIC | {"any_rank", "invalid_indices", INDEPENDENT},
        violations=(wrong_dtype("labels", 1, "float32"), longer("labels", 1, -1), SMOOTHER),
        adapt=_labelled,
        # every participant has a gradient for all classes, of which there are as many as participants
        most=256,
        accumulator="float32",
        usual_sizes={"tokens": 2048, "classes": 32768},
        usual=USUAL,
        implementations={
            "sums": Claim(
                implementations.vocab_parallel_cross_entropy,
                communication=_claim(
                    "logits", "replicated(logits)", "replicated(logits)*elements(logits)*sum_itemsize(logits)"
                ),
            ),
        },
    ),
    operation(
        "projected_cross_entropy",
        cross_entropy.projected_cross_entropy,
        {"x": "tokens features", "w": "features classes@axis_name", "labels": Array("tokens", "int32")},
        draw_sizes=partial(_draw_sizes, signed=False),
        options=OPTIONS,
        invariant=True,
        kinds=with_invalid("real", "exact", "nan", "real"),
        features=frozenset({"explained_errors", "invalid_indices", "x64"}),
        violations=(longer("w", 1, 0), wrong_dtype("labels", 2, "float32"), longer("labels", 2, 0), SMOOTHER),
        adapt=_in_reach,
        # every participant has a gradient for all classes, of which there are as many as participants
        most=64,
        accumulator="float32",
        usual_sizes={"tokens": 2048, "features": 1024, "classes": 32768},
        usual=USUAL,
        implementations={
            "plain": Claim(implementations.projected_cross_entropy, communication=_of_weights("1", "size(w,1)")),
            "chunked": Claim(
                implementations.chunked_projected_cross_entropy, communication=_of_weights(*_in_chunks("size(w,1)"))
            ),
        },
    ),
)
