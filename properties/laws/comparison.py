"""When the blocks of an implementation equal those of the oracle."""

import numpy as np

from oracles.dtypes import exact_limit, is_float, largest_finite, sum_error_bound, wide
from oracles.layout import nan_equal
from properties.cases import Case
from properties.data import Data
from properties.implementations import Implementation
from properties.laws.violation import Difference, LawViolation


def magnitude(array: np.ndarray) -> np.ndarray:
    """|x|, with zero in place of what is not finite: only finite sums have an error bound."""
    exact = np.abs(array.astype(wide(array.dtype)))
    return np.where(np.isfinite(exact), exact, 0)


def is_exact(arrays: list[np.ndarray], terms: int, divides: bool) -> bool:
    """Whether every order of summing these values gives the same bits.

    It does for integers that are small enough, so long as nothing divides them by anything but a
    power of two.
    """
    if divides and terms & (terms - 1):
        return False
    for array in arrays:
        if not is_float(array.dtype):
            continue
        largest = magnitude(array)
        if (largest != np.round(largest)).any() or largest.max(initial=0) * terms > exact_limit(array.dtype):
            return False
    return True


def compare(
    implementation: Implementation,
    law: str,
    case: Case,
    data: Data,
    what: str,
    *,
    expected: np.ndarray,
    actual: np.ndarray,
    bound: np.ndarray | None = None,
) -> None:
    """Blocks agree: in shape, in dtype, and bit for bit or within `bound`, where that is a number.

    Raises:
        LawViolation: if they do not.
    """
    if actual.shape != expected.shape:
        lead = len(case.mesh.sizes)
        raise LawViolation(
            implementation,
            law,
            case,
            f"{what} has blocks of shape {actual.shape[lead:]}: expected {expected.shape[lead:]}",
            data=data,
            difference=Difference.between(what, expected, actual),
        )
    if actual.dtype != expected.dtype:
        raise LawViolation(
            implementation,
            law,
            case,
            f"{what} has dtype {actual.dtype}: expected {expected.dtype}",
            data=data,
            difference=Difference.between(what, expected, actual),
        )
    same = nan_equal(actual, expected)
    if bound is not None:
        with np.errstate(invalid="ignore", over="ignore"):
            same |= np.abs(actual.astype(wide(actual.dtype)) - expected.astype(wide(expected.dtype))) <= bound
        same |= np.isnan(bound) & (expected == expected)
    if not same.all():
        sizes = case.mesh.sizes
        wrong = ~same.reshape(*sizes, -1).all(axis=-1)
        count = f"{int(wrong.sum())} of {case.mesh.size} blocks wrong"
        finding = count if what == "result" else f"{what}: {count}"
        difference = Difference(what, expected, actual, ~same, bound)
        raise LawViolation(implementation, law, case, finding, data=data, difference=difference)


def bound_of_sum(magnitudes: np.ndarray, terms: int, dtype: np.dtype, divides: bool) -> np.ndarray:
    """The error bound of a result, given the same sum over magnitudes; means divide once more.

    It is NaN where the magnitudes overflow: so does the sum, then, in one order or another, and a ring may
    end at the other infinity, or at NaN.
    """
    bound = sum_error_bound(magnitudes, terms + divides, dtype)
    total = magnitudes * terms if divides else magnitudes
    return np.where(total > largest_finite(dtype), np.nan, bound)
