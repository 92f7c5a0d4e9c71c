"""What is right of a case, before any rounding, and how far off an implementation may be."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardproof.oracles.collectives import axis_index
from shardproof.oracles.dtypes import (
    finest,
    flushed,
    half_spacing,
    is_float,
    largest_finite,
    rounded,
    smallest_normal,
    sum_error_bound,
    tiny,
    unit_roundoff,
)
from shardproof.oracles.layout import nan_equal
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.engines.batches import reference_blocks
from shardproof.properties.precision.numbers import (
    Sums,
    divides_exactly,
    is_exact,
    is_moved,
    largest_of,
    magnitude,
    magnitudes_of,
    parts_of,
    sums_exactly,
    terms_of,
)

Arrays = Sequence[np.ndarray]

FEW_PARTICIPANTS = 16
"""So many sums of participants are computed one by one for a bound."""


@dataclass(frozen=True)
class Reference:
    """What is right, before any rounding, and how far off an implementation may be.

    Arguments:
        exact: the oracle's result in a dtype that loses nothing that matters.
        dtype: the dtype that the result must have.
        bound: elementwise, how far a result may be from `exact`; negative where a sum may overflow in one order
            or another: it may be so far off, or not finite; where `exact` is infinite, NaN. None: it is `exact`,
            rounded, bit for bit.
        double: the implementation's own result in double precision, if it was run so.
        leeway: elementwise, how far `double` may be from `exact`; infinite where nothing is known.
    """

    exact: np.ndarray
    dtype: np.dtype
    bound: np.ndarray | None
    double: np.ndarray | None = None
    leeway: np.ndarray | None = None

    @property
    def rounded(self) -> np.ndarray:
        """The number of `dtype` that is nearest to `exact`; it is always right."""
        return rounded(self.exact, self.dtype)

    @property
    def off_in_doubles(self) -> np.ndarray | None:
        """Elementwise, whether the implementation is wrong in double precision: then no rounding explains a result."""
        if self.double is None or self.leeway is None:
            return None
        same = nan_equal(self.double, self.exact)
        if self.exact.dtype == bool:
            return ~same & (self.leeway == 0)
        with np.errstate(invalid="ignore"):
            return ~((np.abs(self.double - self.exact) <= self.leeway) | same)

    @property
    def tells(self) -> bool:
        """Whether some result is told from right: not where so many terms are added up that no digit is certain.

        Where all is zero, as a norm of nothing is, any normal number is told from it. In double precision more is.
        """
        if self.leeway is not None and (self.leeway < (np.abs(self.exact).max(initial=0) or 1.0)).any():
            return True
        if self.bound is None or self.exact.size == 0 or not np.isfinite(self.exact).all():
            return True
        largest = float(np.abs(self.exact).max()) or smallest_normal(self.dtype)
        return bool((np.abs(self.bound) < largest).any())


def references(
    case: Case, arrays: Arrays, features: frozenset[str] = frozenset(), *, split: bool = False
) -> list[Reference]:
    """What the oracle says of the results, as blocks, and how far off they may be.

    Terms are added up in the contract's accumulator, or in the operands' own dtype by a function that has
    the feature `narrow_accumulation`. What comes out of an accumulator that is wider than the operands is
    rounded to their dtype `stages` times: once at the end, and before that where a partial sum is sent, unless
    that is exact. Of one that is no sum of products, only an implementation's wide run says how far off it may be.

    Where a compiler `split`s the sums, all devices may have parts of them, which are rounded, and so is every sum of
    parts.
    """
    contract = CONTRACTS[case.contract]
    blocks = [case.blocks(i, array) for i, array in enumerate(arrays)]
    exact = reference_blocks(case, blocks)
    dtypes = contract.result_dtypes(case, [np.dtype(array.dtype) for array in arrays])[: len(exact)]
    if contract.nonlinear:
        return [Reference(e, dtype, None) for e, dtype in zip(exact, dtypes, strict=True)]
    if is_moved(case) or is_exact(case, arrays, terms_of(case)):
        return [Reference(e, dtype, with_infinite(case, e, None)) for e, dtype in zip(exact, dtypes, strict=True)]
    moving = contract.moving(case)
    sums = reference_blocks(case, magnitudes_of(case, blocks))
    unit = math.prod(finest(arrays[i]) for i in moving) if contract.degree > 1 else 0.0
    largest = max((largest_of(arrays[i]) for i in moving), default=0.0)
    found = []
    for i, (right, magnitudes, dtype) in enumerate(zip(exact, sums, dtypes, strict=True)):
        known = Sums(np.asarray(magnitudes * parts_of(case)), unit or finest(arrays[i]))
        held = dtype if "narrow_accumulation" in features else contract.accumulator(dtype)
        # as large as one participant's sum may be
        sent = math.prod(largest_of(arrays[i]) for i in moving) * contract.partial(case)
        stages = 1 if contract.degree == 2 and sums_exactly(dtype, sent, known.unit) else contract.stages
        if split and contract.degree > 1:
            stages += case.mesh.size
        rounded_once = partial_sums(case, blocks) if stages == 2 and held != dtype else magnitudes
        bound = _value_bound(case, right, known, dtype, held, stages, largest, rounded_once)
        found.append(Reference(right, dtype, with_infinite(case, right, bound)))
    return found


def with_infinite(case: Case, exact: np.ndarray, bound: np.ndarray | None) -> np.ndarray | None:
    """The bound of a product's result, of which NaN is as right as infinity.

    A form that multiplies by the zeros of padding has zero times infinity among its terms.
    """
    infinite = np.isinf(exact)
    if CONTRACTS[case.contract].degree == 1 or not infinite.any():
        return bound
    return np.where(infinite, -1.0, 0.0 if bound is None else bound)


def partial_sums(case: Case, blocks: Arrays) -> np.ndarray:
    """Elementwise, what the participants add up by themselves, as the sum of the absolute values of their sums.

    Each of these is what is rounded before it is sent, and may be much smaller than its terms are in all.
    Of many participants an upper bound is enough: the sum of the absolute values of all terms. What is not finite
    counts as zero.
    """
    blocks = [np.where(np.isfinite(b), b, 0).astype(b.dtype) for b in blocks]
    if case.participants > FEW_PARTICIPANTS:
        return reference_blocks(case, magnitudes_of(case, blocks))[0]
    index = axis_index(case.mesh, case.axes)
    total: np.ndarray | None = None
    for participant in range(case.participants):
        chosen = (index == participant).reshape(*case.mesh.sizes, *[1] * (blocks[0].ndim - len(case.mesh.sizes)))
        with np.errstate(invalid="ignore"):
            own = np.abs(
                reference_blocks(case, [np.where(chosen, blocks[0], 0).astype(blocks[0].dtype), *blocks[1:]])[0]
            )
        total = own if total is None else total + own
    assert total is not None
    return total


def _value_bound(
    case: Case,
    exact: np.ndarray,
    sums: Sums,
    dtype: np.dtype,
    held: np.dtype,
    stages: int,
    largest: float,
    partial: np.ndarray,
) -> np.ndarray | None:
    if not is_float(dtype):
        return None
    contract, terms = CONTRACTS[case.contract], CONTRACTS[case.contract].terms(case)
    divides = contract.divides(case)
    products = max(contract.degree - 1 - (held != dtype), 0)  # that of two 16-bit floats is exact in float32
    count = np.asarray(roundings(np.asarray(terms), products, dtype, divisions=int(divides)) * case.calls)
    if held == dtype:
        return _within(case, sums, count, dtype)
    magnitudes, u = sums.magnitudes, unit_roundoff(dtype)
    exactly = sums.exact_in(held, parts_of(case)) & divides_exactly(case)
    error = np.where(exactly, 0, sum_error_bound(magnitudes, count, held)) / (terms if divides else 1)
    # below the normal range a hidden value is off by a fixed amount, which a factor after it multiplies
    floor = tiny(dtype) * (terms * max(largest, 1.0) ** (contract.degree - 2) if contract.degree > 2 else 1)
    for _ in range(stages - 1):
        error = error + u * (partial + error) + floor * case.participants
    result = magnitude(exact)
    overflows = (magnitudes if stages > 1 else result) + error > largest_finite(dtype)
    error = error + half_spacing(result + error, dtype) + (flushed(dtype) if divides else 0)
    return np.where(overflows, -error, error)


def roundings(counts: np.ndarray, products: int, dtype: np.dtype, *, divisions: int) -> np.ndarray:
    """How often a term is rounded, at most, in a sum of so many, each the product of `products` + 1 factors.

    The parts of a complex product are sums of two products each, and the error of a sum of n by its parts
    is at most sqrt(2) gamma(2 n), so that three roundings per term cover it. A mean divides, or multiplies
    by a rounded reciprocal: two for each of the `divisions`.
    """
    if dtype.kind == "c" and products:
        return np.asarray(3 * counts * products)
    return np.asarray(np.maximum(counts - 1, 0) + products + 2 * divisions)


def derivative(case: Case, exact: np.ndarray, sums: Sums, counts: np.ndarray, dtype: np.dtype) -> Reference:
    """A tangent or gradient that adds up `counts` terms, elementwise.

    What a derivative adds up is written by JAX, which accumulates cotangents in the operands' own dtype, one
    device's and one step's after the other.
    """
    contract = CONTRACTS[case.contract]
    products = contract.degree - 1
    divides = contract.divides(case)
    count = roundings(counts, products, dtype, divisions=case.calls if divides else 0)
    if products == 0 and not divides:
        count = np.where(counts <= 1, 0, count)
    return Reference(exact, dtype, _within(case, sums, count, dtype))


def _within(case: Case, sums: Sums, count: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    """The bound of sums in the result's own dtype; None: they are exact.

    Where the magnitudes overflow, so does the sum, in one order or another: a ring may end at the other
    infinity, or at NaN.
    """
    contract = CONTRACTS[case.contract]
    divided = terms_of(case) if contract.divides(case) else 0
    exactly = sums.exact_in(dtype, parts_of(case)) & divides_exactly(case)
    if exactly.all():
        return None
    error = np.where(exactly, 0, sum_error_bound(sums.magnitudes, count, dtype))
    bound = error / max(divided, 1) + (max(divided * tiny(dtype), flushed(dtype)) if divided else 0)
    return np.where(sums.magnitudes + error > largest_finite(dtype), -bound, bound)
