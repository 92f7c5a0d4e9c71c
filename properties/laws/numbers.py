"""The numbers of a case: its operands for a data set, their right results, and how far off an implementation may be."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardproof.oracles.collectives import axis_index
from shardproof.oracles.dtypes import (
    exact_limit,
    finest,
    half_spacing,
    is_float,
    largest_finite,
    rounded,
    smallest_normal,
    sum_error_bound,
    tiny,
    unit_roundoff,
    wide,
)
from shardproof.properties.cases import Case
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.data import Data
from shardproof.properties.laws.running import is_batched, over_batch, reference_blocks, widened_operands
from shardproof.properties.laws.violation import NotRun
from shardproof.properties.transformations import TRANSFORMATIONS

Arrays = Sequence[np.ndarray]

USES = 4
"""How often a function may use an operand whose derivative is no sum of products: JAX rounds the cotangent of each use
to the operand's dtype, and adds it up there."""

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
    """

    exact: np.ndarray
    dtype: np.dtype
    bound: np.ndarray | None

    @property
    def rounded(self) -> np.ndarray:
        """The number of `dtype` that is nearest to `exact`; it is always right."""
        return rounded(self.exact, self.dtype)

    @property
    def tells(self) -> bool:
        """Whether some result is told from right: not where so many terms are added up that no digit is certain."""
        if self.bound is None or self.exact.size == 0 or not np.isfinite(self.exact).all():
            return True
        return bool((np.abs(self.bound) < np.abs(self.exact).max()).any())


def checked_sets(told: Sequence[bool], case: Case) -> int:
    """How many data sets tell right from wrong, given which do.

    Raises:
        NotRun: if none does.
    """
    if not any(told):
        names = ", ".join(operand.dtype for operand in case.operands)
        raise NotRun(f"no data set tells right from wrong: sums of so many terms have no certain digit in {names}")
    return sum(told)


@dataclass(frozen=True)
class Sums:
    """What is known of the sums that make up a result.

    Arguments:
        magnitudes: elementwise, the sum of the absolute values of all terms.
        unit: a power of two of which every term is a multiple.
    """

    magnitudes: np.ndarray
    unit: float

    def exact_in(self, dtype: np.dtype) -> np.ndarray:
        """Elementwise, whether every order of adding up gives the same bits: sums are small multiples of the unit."""
        with np.errstate(invalid="ignore"):
            small = self.magnitudes <= exact_limit(dtype) * self.unit
        return np.asarray(small & (self.magnitudes <= largest_finite(dtype)) & (self.unit >= smallest_normal(dtype)))


def operands(case: Case, data: Data, terms: int | None = None) -> list[np.ndarray]:
    """The global arrays of a data set; `terms` is how many products a result adds up, the contract's own by default."""
    contract = CONTRACTS[case.contract]
    count = contract.terms(case) if terms is None else terms
    count = contract.partial(case) if data.kind == "partial" else count
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


def magnitudes_of(case: Case, blocks: Arrays) -> list[np.ndarray]:
    """The blocks of all operands, of those that have a gradient as their absolute values."""
    moving = CONTRACTS[case.contract].moving(case)
    return [magnitude(b) if i in moving else b for i, b in enumerate(blocks)]


def is_exact(case: Case, arrays: Arrays, terms: int, directions: Arrays | None = None) -> bool:
    """Whether every order of adding up the terms gives the same bits, by the largest elements alone.

    It does for small multiples of a power of two, so long as nothing divides them by anything but a
    power of two. A term is an element, or a product of one of each operand (`degree` above 1); in a
    derivative an element of the tangents or cotangents (`directions`) takes one operand's place.
    """
    contract = CONTRACTS[case.contract]
    if not _divides_exactly(case):
        return False
    if contract.smooth is not None:
        return False
    own = [arrays[i] for i in contract.moving(case)]
    factors = [*(own if contract.degree > 1 or directions is None else ()), *(directions or ())]
    factors = [a for a in factors if is_float(a.dtype)]  # integers wrap around all the same
    if contract.degree == 1:
        return all(_is_exact(a.dtype, _largest(a) * terms, finest(a)) for a in factors)
    largest = sorted(_largest(a) for a in own)
    units = [finest(a) for a in own]
    if directions is not None:
        largest[0] = max((_largest(d) for d in directions), default=0.0)
        smallest = min((finest(d) for d in directions), default=math.inf)
        units = sorted(min(unit, smallest) for unit in units)
    total, unit = math.prod(largest) * terms, math.prod(units)
    return all(_is_exact(a.dtype, total, unit) for a in factors)


def is_moved(case: Case) -> bool:
    """Whether results are elements of the operands as they are, so that any data is exact."""
    contract = CONTRACTS[case.contract]
    return contract.terms(case) == 1 and contract.degree == 1 and contract.smooth is None


def _largest(array: np.ndarray) -> float:
    return float(magnitude(array).max(initial=0))


def _is_exact(dtype: np.dtype, total: float, unit: float) -> bool:
    return bool(Sums(np.asarray(total, np.float64), unit).exact_in(dtype))


def references(case: Case, arrays: Arrays, features: frozenset[str] = frozenset()) -> list[Reference]:
    """What the oracle says of the results, as blocks, and how far off they may be.

    Terms are added up in the contract's accumulator, or in the operands' own dtype by a function that has
    the feature `narrow_accumulation`. What comes out of an accumulator that is wider than the operands is
    rounded to their dtype `stages` times: once at the end, and before that where a partial sum is sent, unless
    that is exact.
    """
    contract = CONTRACTS[case.contract]
    blocks = [case.blocks(i, array, batched=is_batched(case)) for i, array in enumerate(arrays)]
    exact = reference_blocks(case, blocks)
    dtypes = [contract.result_dtype(case, np.dtype(arrays[i % len(arrays)].dtype)) for i in range(len(exact))]
    if contract.smooth is not None:
        smooth, wider = contract.smooth, widened_operands(case, blocks)
        sums = over_batch(case, wider, lambda b: smooth.value(case, b))
        return [smooth_reference(case, *one) for one in zip(exact, sums, dtypes, strict=True)]
    terms = contract.terms(case)
    if is_moved(case) or is_exact(case, arrays, terms):
        return [Reference(e, dtype, with_infinite(case, e, None)) for e, dtype in zip(exact, dtypes, strict=True)]
    moving = contract.moving(case)
    sums = reference_blocks(case, magnitudes_of(case, blocks))
    unit = math.prod(finest(arrays[i]) for i in moving) if contract.degree > 1 else 0.0
    largest = max((_largest(arrays[i]) for i in moving), default=0.0)
    found = []
    for i, (right, magnitudes, dtype) in enumerate(zip(exact, sums, dtypes, strict=True)):
        known = Sums(magnitudes * (terms if contract.divides(case) else 1), unit or finest(arrays[i]))
        held = dtype if "narrow_accumulation" in features else contract.accumulator(dtype)
        sent = math.prod(_largest(arrays[i]) for i in moving) * contract.partial(
            case
        )  # as large as one participant's sum may be
        stages = 1 if contract.degree == 2 and _is_exact(dtype, sent, known.unit) else contract.stages
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
    if case.members > FEW_PARTICIPANTS:
        return reference_blocks(case, magnitudes_of(case, blocks))[0]
    index = axis_index(case.mesh, case.axes)
    total: np.ndarray | None = None
    for member in range(case.members):
        chosen = (index == member).reshape(*case.mesh.sizes, *[1] * (blocks[0].ndim - len(case.mesh.sizes)))
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
    count = roundings(np.asarray(terms), products, dtype, divides=divides)
    if held == dtype:
        return _within(case, sums, count, dtype)
    magnitudes, u = sums.magnitudes, unit_roundoff(dtype)
    exactly = sums.exact_in(held) & _divides_exactly(case)
    error = np.where(exactly, 0, sum_error_bound(magnitudes, count, held)) / (terms if divides else 1)
    # below the normal range a hidden value is off by a fixed amount, which a factor after it multiplies
    floor = tiny(dtype) * (terms * max(largest, 1.0) ** (contract.degree - 2) if contract.degree > 2 else 1)
    for _ in range(stages - 1):
        error = error + u * (partial + error) + floor * case.members
    result = magnitude(exact)
    overflows = (magnitudes if stages > 1 else result) + error > largest_finite(dtype)
    error = error + half_spacing(result + error, dtype)
    return np.where(overflows, -error, error)


def roundings(counts: np.ndarray, products: int, dtype: np.dtype, *, divides: bool) -> np.ndarray:
    """How often a term is rounded, at most, in a sum of so many, each the product of `products` + 1 factors.

    The parts of a complex product are sums of two products each, and the error of a sum of n by its parts
    is at most sqrt(2) gamma(2 n), so that three roundings per term cover it. A mean divides, or multiplies
    by a rounded reciprocal: two.
    """
    if dtype.kind == "c" and products:
        return np.asarray(3 * counts * products)
    return np.asarray(np.maximum(counts - 1, 0) + products + 2 * divides)


def derivative(case: Case, exact: np.ndarray, sums: Sums, counts: np.ndarray, dtype: np.dtype) -> Reference:
    """A tangent or gradient that adds up `counts` terms, elementwise.

    What a derivative adds up is written by JAX, which accumulates cotangents in the operands' own dtype, one
    device's and one step's after the other.
    """
    contract = CONTRACTS[case.contract]
    products = contract.degree - 1
    divides = contract.divides(case)
    count = roundings(counts, products, dtype, divides=divides)
    if products == 0 and not divides:
        count = np.where(counts <= 1, 0, count)
    return Reference(exact, dtype, _within(case, sums, count, dtype))


def smooth_reference(
    case: Case, exact: np.ndarray, sums: np.ndarray, dtype: np.dtype, *, derivative: bool = False
) -> Reference:
    """A result that is no sum of products: off by its contract's roundings in the accumulator, and one in its dtype.

    What a derivative adds up of replicas is written by JAX, in the operands' own dtype.
    """
    contract = CONTRACTS[case.contract]
    assert contract.smooth is not None
    mesh = case.mesh
    replicas = max(mesh.size // mesh.axis_size(mesh.in_mesh_order(o.placement.axes)) for o in case.operands)
    held, sums = contract.accumulator(dtype), magnitude(sums)
    error = sum_error_bound(sums, contract.smooth.roundings(case), held)
    if derivative:
        error = error + sum_error_bound(sums + error, replicas + 2 * USES, dtype)
    return Reference(exact, dtype, error + half_spacing(magnitude(exact) + error, dtype))


def _divides_exactly(case: Case) -> bool:
    """Whether nothing divides the sums, or powers of two alone."""
    contract = CONTRACTS[case.contract]
    return not contract.divides(case) or contract.even(case)


def _within(case: Case, sums: Sums, count: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    """The bound of sums in the result's own dtype; None: they are exact.

    Where the magnitudes overflow, so does the sum, in one order or another: a ring may end at the other
    infinity, or at NaN.
    """
    contract = CONTRACTS[case.contract]
    divided = contract.terms(case) if contract.divides(case) else 0
    exactly = sums.exact_in(dtype) & _divides_exactly(case)
    if exactly.all():
        return None
    error = np.where(exactly, 0, sum_error_bound(sums.magnitudes, count, dtype))
    bound = error / max(divided, 1) + divided * tiny(dtype)
    return np.where(sums.magnitudes + error > largest_finite(dtype), -bound, bound)
