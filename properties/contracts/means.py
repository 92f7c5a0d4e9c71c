"""The contracts of means over all participants' elements: each counts by its weight, or by a mask of zeros and ones."""

import numpy as np
from hypothesis import strategies as st

from shardproof.impl import means as implementations
from shardproof.oracles import means
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts.contract import Claim, Contract, Scope, at_least_a_byte
from shardproof.properties.contracts.drawing import further_dimensions, sides
from shardproof.properties.contracts.forbidden import longer, wrong_dtype
from shardproof.properties.contracts.numbers import finite, scaled_to
from shardproof.properties.contracts.operation import INDEPENDENT, Arguments, Described, Drawn, operation

FEATURES = frozenset({"any_rank", "explained_errors", "replicated_operands", "x64"})
OF_MASKED = FEATURES | {INDEPENDENT}

SMALL = 2.0**-40
"""A factor of all weights in some data sets of more than 16 bits: the mean is the same."""


def _with(dtype: str = "") -> Arguments:
    def arguments(draw: st.DrawFn, participants: int, scope: Scope) -> Drawn:
        block = (*further_dimensions(draw, scope), *sides.within(draw, scope, 1, most=6))
        return [Described(block), Described(block, dtype, like=0)], {}

    return arguments


def _where(case: Case, counts: np.ndarray, known: np.ndarray) -> np.ndarray:
    """The elements that count and meet none but known values."""
    met = case.aligned(0, known) & np.ones_like(case.aligned(1, counts))
    shared = tuple(len(case.operands[1].placement.stacked) + at for at in case.shared_dimensions(1))
    return np.asarray(counts & met.all(axis=shared).reshape(counts.shape))


def _masked(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The mask: of one participant's elements, of all, or of none; what is not finite is masked half of the time.

    Drawn booleans count about half of the elements of each participant, so that a mean of means is nearly right.
    """
    values, mask = arrays
    style = int(np.count_nonzero(mask)) % 5
    if style == 0:
        mask = np.zeros_like(mask)
    elif style == 1:
        mask = np.ones_like(mask)
    elif style == 2:  # the first elements count, so that participants count different numbers of them
        mask = np.arange(mask.size).reshape(mask.shape) <= mask.size // 3
    return [values, mask if style == 1 else _where(case, mask, np.isfinite(values.astype(np.float64)))]


def _weighted(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Weights of a part of the elements, of all, or of none; NaN may have one, and infinity has none.

    Where only the first elements have weights, those of one participant add up to more than those of another.
    """
    values, drawn = arrays
    weights = scaled_to(np.abs(finite(drawn)), 8.0)
    style = int(np.signbit(values).sum() + np.signbit(drawn).sum()) % 5
    counts = np.ones(weights.shape, bool)
    if style == 0:
        counts[...] = False
    elif style == 1:
        counts = np.arange(weights.size).reshape(weights.shape) <= weights.size // 3
    elif style == 2:
        counts = np.signbit(drawn)
    wide = values.astype(np.float64)
    counts = _where(case, counts, ~np.isinf(wide) if style == 3 else np.isfinite(wide))
    if weights.dtype.itemsize > 2 and int(np.signbit(drawn).sum()) % 3 == 2:
        weights = weights * np.asarray(SMALL, weights.dtype)
    return [values, np.where(counts, weights, np.zeros((), weights.dtype))]


OF_MASK = "all_reduce=2,bytes=4+sum_itemsize(values);grad:all_reduce=1,bytes=4"
"""A sum, and a count in int32."""

OF_WEIGHTS = "all_reduce=2,bytes=2*sum_itemsize(values);grad:all_reduce=1,bytes=sum_itemsize(values)"

CONTRACTS: tuple[Contract, ...] = (
    operation(
        "masked_mean",
        means.masked_mean,
        _with("bool"),
        operands=("values", "mask"),
        auxiliary=("mask",),
        invariant=True,
        kinds=("exact", "real", "nan", "scaled", "special", "nan"),
        features=OF_MASKED,
        violations=(longer("mask", 1, -1), wrong_dtype("mask", 1, "float32")),
        adapt=_masked,
        accumulator="float32",
        shapes=(((65536,), 0, ""), ((65536,), 0, "bool")),
        leading=0,
        least=at_least_a_byte(0),
        implementations={"sums": Claim(implementations.masked_mean, communication=OF_MASK)},
    ),
    operation(
        "weighted_mean",
        means.weighted_mean,
        _with(),
        operands=("values", "weights"),
        auxiliary=("weights",),
        invariant=True,
        kinds=("exact", "real", "nan", "special", "distinct", "real"),
        features=FEATURES,
        violations=(longer("weights", 1, -1), wrong_dtype("weights", 1, "int32")),
        adapt=_weighted,
        accumulator="float32",
        shapes=(((65536,), 0, ""), ((65536,), 0, "")),
        least=at_least_a_byte(0),
        implementations={"sums": Claim(implementations.weighted_mean, communication=OF_WEIGHTS)},
    ),
)
