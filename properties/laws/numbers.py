"""The numbers of a case: its operands for a data set, whether their results are exact, and how far off they may be."""

import math
from collections.abc import Sequence

import numpy as np

from oracles.dtypes import exact_limit, is_float, largest_finite, sum_error_bound, unit_roundoff, wide
from properties.cases import Case
from properties.contracts import CONTRACTS
from properties.data import Data
from properties.transformations import TRANSFORMATIONS

Arrays = Sequence[np.ndarray]


def operands(case: Case, data: Data, terms: int | None = None) -> list[np.ndarray]:
    """The global arrays of a data set; `terms` is how many products a result adds up, the contract's own by default."""
    contract = CONTRACTS[case.contract]
    count = contract.terms(case) if terms is None else terms
    batched = TRANSFORMATIONS[case.around].batched
    arrays = [
        case.global_array(i, data, terms=count, batched=batched, degree=contract.degree)
        for i in range(len(case.operands))
    ]
    return contract.adapt(case, arrays)


def magnitude(array: np.ndarray) -> np.ndarray:
    """|x|, with zero in place of what is not finite: only finite sums have an error bound."""
    exact = np.abs(array.astype(wide(array.dtype)))
    return np.where(np.isfinite(exact), exact, 0)


def is_exact(case: Case, arrays: Arrays, terms: int, directions: Arrays | None = None) -> bool:
    """Whether every order of adding up the terms gives the same bits, in the result or in a derivative.

    It does for integers that are small enough, so long as nothing divides them by anything but a
    power of two. A term is an element, or a product of one of each operand (`degree` above 1); in a
    derivative an element of the tangents or cotangents (`directions`) takes one operand's place.
    """
    contract = CONTRACTS[case.contract]
    if contract.divides(case) and terms & (terms - 1):
        return False
    if contract.degree == 1:
        return all(_is_exact(a, _largest(a) * terms, a.dtype) for a in (arrays if directions is None else directions))
    factors = sorted(_largest(a) for a in arrays)
    if directions is not None:
        factors[0] = max((_largest(d) for d in directions), default=0.0)
    together = math.prod(factors) * terms
    return all(_is_exact(a, together, a.dtype) for a in (*arrays, *(directions or ())))


def is_moved(case: Case) -> bool:
    """Whether results are elements of the operands as they are, so that any data is exact."""
    contract = CONTRACTS[case.contract]
    return contract.terms(case) == 1 and contract.degree == 1


def _largest(array: np.ndarray) -> float:
    return float(magnitude(array).max(initial=0))


def _is_exact(array: np.ndarray, total: float, dtype: np.dtype) -> bool:
    """Whether the elements are integers, and a sum as large as `total` is exact; integers wrap around all the same."""
    return not is_float(dtype) or bool(
        (magnitude(array) == np.round(magnitude(array))).all() and total <= exact_limit(dtype)
    )


def unless_infinite(bound: np.ndarray, totals: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The bound, and NaN where sums of such magnitudes may overflow: in some order they are infinite, or NaN."""
    return np.where(totals > largest_finite(dtype), np.nan, bound)


def bound_of_sum(
    case: Case, magnitudes: np.ndarray, terms: int, dtype: np.dtype, *, derivative: bool = False
) -> np.ndarray:
    """How far a result may be off, given the same sum over magnitudes.

    Terms are added up in the contract's accumulator (see `sum_error_bound`; a product and a mean
    round once more each), and what comes out of it is rounded to `dtype`, `stages` times. What a
    derivative adds up is written by JAX, which accumulates cotangents in the operands' own dtype.
    It is NaN where the magnitudes overflow: so does the sum, then, in one order or another, and a ring may
    end at the other infinity, or at NaN.
    """
    contract = CONTRACTS[case.contract]
    held = np.dtype(dtype) if derivative else contract.accumulator(np.dtype(dtype))
    # a complex product errs by up to sqrt(5) u (Brent, Percival and Zimmermann 2007), a real one by u
    products = (contract.degree - 1) * (3 if held.kind == "c" else 1) + (contract.stages - 1) * (held == dtype)
    bound = sum_error_bound(magnitudes, terms + contract.divides(case) + products, held)
    total = magnitudes * terms if contract.divides(case) else magnitudes
    bound = unless_infinite(bound, total, dtype)
    if held == dtype:
        return bound
    u = contract.stages * unit_roundoff(dtype)
    tiny = sum_error_bound(np.zeros_like(magnitudes), contract.stages, dtype)
    return np.asarray(bound + u * (magnitudes + bound) + tiny)
