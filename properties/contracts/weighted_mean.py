"""The contract of weighted_mean: the mean over all participants' elements, each of which counts by its weight."""

import numpy as np
from hypothesis import strategies as st

from shardproof.impl import weighted_mean as implementations
from shardproof.oracles import weighted_mean
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.strategies.making import sampled
from shardproof.properties.cases.strategies.shapes import LONG
from shardproof.properties.contracts.contract import Claim, Contract, Scope, Violation
from shardproof.properties.contracts.costs import elements, something
from shardproof.properties.contracts.drawing import further_dimensions
from shardproof.properties.contracts.floats import float32_accumulator, scaled_to
from shardproof.properties.contracts.forbidden import changed
from shardproof.properties.contracts.operation import Described, Drawn, operation

FEATURES = frozenset({"any_rank", "explained_errors", "replicated_operands", "x64"})

LARGEST = 8.0
"""About the largest weight."""

SMALL = 2.0**-40
"""What all weights are multiplied by now and then, of more than 16 bits: the mean is the same."""


def _arguments(draw: st.DrawFn, participants: int, scope: Scope) -> Drawn:
    usual = st.integers(1, 2 if scope.large else 6)
    long = not scope.large and draw(st.integers(0, 9), label="long") == 9
    size = draw(sampled(LONG) if long else usual, label="elements")
    block = (*further_dimensions(draw, scope), size)
    return [Described(block), Described(block, like=0)], {}


def _weighted(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Weights of a part of the elements, of all, or of none; NaN has one now and then, and what is infinite none.

    Where only the first elements have weights, those of one participant add up to more than those of another.
    """
    values, drawn = arrays
    finite = np.isfinite(drawn.astype(np.float64))
    weights = scaled_to(np.abs(np.where(finite, drawn, np.ones((), drawn.dtype))), LARGEST)
    style = int(np.signbit(values).sum() + np.signbit(drawn).sum()) % 5
    counts = np.ones(weights.shape, bool)
    if style == 0:
        counts[...] = False
    elif style == 1:
        counts = np.arange(weights.size).reshape(weights.shape) <= weights.size // 3
    elif style == 2:
        counts = np.signbit(drawn)
    wide = values.astype(np.float64)
    known = case.aligned(0, ~np.isinf(wide) if style == 3 else np.isfinite(wide)) & np.ones_like(
        case.aligned(1, counts)
    )
    shared = tuple(len(case.operands[1].placement.stacked) + at for at in case.shared_dimensions(1))
    counts = counts & known.all(axis=shared).reshape(counts.shape)
    if weights.dtype.itemsize > 2 and int(np.signbit(drawn).sum()) % 3 == 2:
        weights = weights * np.asarray(SMALL, weights.dtype)
    return [values, np.where(counts, weights, np.zeros((), weights.dtype))]


def _taller(case: Case) -> st.SearchStrategy[Case]:
    *more, size = case.operands[1].block
    return st.just(changed(case, 1, block=(*more, size + 1)))


def _integers(case: Case) -> st.SearchStrategy[Case]:
    return st.just(changed(case, 1, dtype="int32"))


CONTRACT: Contract = operation(
    "weighted_mean",
    weighted_mean.weighted_mean,
    _arguments,
    operands=("values", "weights"),
    auxiliary=frozenset({"weights"}),
    invariant=True,
    kinds=("exact", "real", "nan", "special", "distinct", "real"),
    features=FEATURES,
    violations=(Violation("weights", _taller), Violation("weights", _integers)),
    adapt=_weighted,
    weighs=True,
    terms=lambda case: elements(case) * case.participants,
    quotient=True,
    accumulator=float32_accumulator,
    nonlinear=True,
    budget="fused",
    shapes=(((65536,), 0, ""), ((65536,), 0, "")),
    least=something(0),
    implementations={
        "sums": Claim(
            implementations.weighted_mean,
            FEATURES,
            communication="all_reduce=2,bytes=2*sum_itemsize(values);grad:all_reduce=1,bytes=sum_itemsize(values)",
        ),
        "gathered": Claim(
            implementations.gathered_weighted_mean,
            FEATURES,
            communication="all_gather=2,bytes=2*values;grad:all_gather=1,bytes=values",
        ),
    },
)
