"""The numbers of a case: its operands for a data set, and which sums of them every order of adding up gives exactly."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from shardproof.oracles.dtypes import exact_limit, finest, is_float, largest_finite, smallest_normal, wide
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data

Arrays = Sequence[np.ndarray]


def operands(case: Case, data: Data, terms: int | None = None) -> list[np.ndarray]:
    """The global arrays of a data set; `terms` is how many products a result adds up, the contract's own by default."""
    contract = case.contract
    count = terms_of(case) if terms is None else terms
    count = contract.partial(case) if data.kind == "partial" else count
    arrays = [case.global_array(i, data, terms=count, degree=contract.degree) for i in range(len(case.operands))]
    if data.kind == "special" and is_moved(case):
        arrays = [_with_largest(array) for array in arrays]
    return arrays if data.kind == "zeros" else contract.adapt(dataclasses.replace(case, data=(data,)), arrays)


def _with_largest(array: np.ndarray) -> np.ndarray:
    """The array with the largest finite numbers in place of every other infinity: nothing is added to them."""
    if not is_float(array.dtype) or array.dtype.kind == "c":
        return array
    infinite = np.isinf(array.astype(np.float64))
    every_other = infinite & (np.cumsum(infinite).reshape(array.shape) % 2 == 1)
    largest = np.array(largest_finite(array.dtype)).astype(array.dtype)
    return np.where(every_other, np.where(array < 0, -largest, largest), array).astype(array.dtype)


def magnitude(array: np.ndarray) -> np.ndarray:
    """|x|, with zero in place of what is not finite: only finite sums have an error bound."""
    exact = np.abs(array.astype(wide(array.dtype)))
    return np.where(np.isfinite(exact), exact, 0)


def magnitudes_of(case: Case, blocks: Arrays) -> list[np.ndarray]:
    """The blocks of all operands, of those that have a gradient as their absolute values."""
    moving = case.contract.moving(case)
    return [magnitude(b) if i in moving else b for i, b in enumerate(blocks)]


def is_exact(case: Case, arrays: Arrays, terms: int, directions: Arrays | None = None) -> bool:
    """True if every order of adding up the terms gives the same bits, by the largest elements alone.

    It does for small multiples of a power of two, so long as nothing divides them by anything but a
    power of two. A term is an element, or a product of one of each operand (`degree` above 1); in a
    derivative an element of the tangents or cotangents (`directions`) takes one operand's place.
    """
    contract = case.contract
    if contract.nonlinear or not divides_exactly(case):
        return False
    own = [arrays[i] for i in contract.moving(case)]
    factors = [*(own if contract.degree > 1 or directions is None else ()), *(directions or ())]
    factors = [a for a in factors if is_float(a.dtype)]  # integers wrap around all the same
    if contract.degree == 1:
        return all(sums_exactly(a.dtype, largest_of(a) * terms, finest(a), parts_of(case)) for a in factors)
    largest = sorted(largest_of(a) for a in own)
    units = [finest(a) for a in own]
    if directions is not None:
        largest[0] = max((largest_of(d) for d in directions), default=0.0)
        smallest = min((finest(d) for d in directions), default=math.inf)
        units = sorted(min(unit, smallest) for unit in units)
    total, unit = math.prod(largest) * terms, math.prod(units)
    return all(sums_exactly(a.dtype, total, unit) for a in factors)


def terms_of(case: Case) -> int:
    """The number of terms of a result: of calls that feed one another, each adds up results of the one before it."""
    return case.contract.terms(case) ** case.calls


def pushed_terms(case: Case) -> int:
    """The number of terms of a tangent: each product gives one per factor."""
    return terms_of(case) * case.contract.degree


def pulled_terms(case: Case) -> int:
    """The number of terms that a gradient may have.

    Every device may read an element of a block, in every call, and every device that holds a replica of that block
    adds to the gradient of the one value behind them. A product is read once per row or column, and what a batch shares
    once per input.
    """
    mesh, contract = case.mesh, case.contract
    replicas = (mesh.size // mesh.axis_size(mesh.in_mesh_order(o.placement.axes)) for o in case.operands)
    shared = max(math.prod(case.batch) // math.prod(case.batch_of(i)) for i in range(len(case.operands)))
    longest = max((side for operand in case.operands for side in operand.block), default=1)
    products = max(longest, 1) ** (contract.degree - 1) * contract.reads(case)
    return (mesh.size * products) ** case.calls * shared * max(replicas, default=1)


def is_moved(case: Case) -> bool:
    """True if results are elements of the operands as they are, so that any data is exact."""
    contract = case.contract
    return contract.terms(case) == 1 and contract.degree == 1 and not contract.nonlinear


def largest_of(array: np.ndarray) -> float:
    """The largest finite absolute value; 0 where there is none."""
    return float(magnitude(array).max(initial=0))


def sums_exactly(dtype: np.dtype, total: float, unit: float, parts: int = 1) -> bool:
    """True if a sum of multiples of `unit`, whose absolute values add up to `total`, is exact in a dtype.

    One of so many `parts` of it must be in the normal range as well.
    """
    small = total <= min(exact_limit(dtype) * unit, largest_finite(dtype))
    return small and unit >= parts * smallest_normal(dtype)


def parts_of(case: Case) -> int:
    """Into how many parts a sum is divided."""
    return terms_of(case) if case.contract.divides(case) else 1


def divides_exactly(case: Case) -> bool:
    """True if nothing divides the sums, or powers of two alone."""
    contract = case.contract
    return not contract.divides(case) or contract.even(case)
