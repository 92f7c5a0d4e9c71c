"""The numbers of a case: its operands for a data set."""

import dataclasses
from functools import lru_cache

import numpy as np

from shardproof.oracles.dtypes import is_float, largest_finite
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data

COUNTED = Data("exact", 0)
"""The data on which communication is counted: only what a loop sends may depend on it."""

MOST_FACTORS = 4
"""The most arrays that may be multiplied by one another: data leave no room for more."""


def operands(case: Case, data: Data) -> list[np.ndarray]:
    """The global arrays of a data set, which leave room for sums and products of them."""
    terms = longest(case) if data.kind == "partial" else terms_of(case)
    arrays = [case.global_array(i, data, terms=terms, degree=degree_of(case)) for i in range(len(case.operands))]
    if data.kind == "special" and is_moved(case.structure):
        arrays = [_with_largest(array) for array in arrays]
    return arrays if data.kind == "zeros" else case.contract.adapt(dataclasses.replace(case, data=(data,)), arrays)


def _with_largest(array: np.ndarray) -> np.ndarray:
    """The array with the largest finite numbers in place of every other infinity: nothing is added to them."""
    if not is_float(array.dtype) or array.dtype.kind == "c":
        return array
    infinite = np.isinf(array.astype(np.float64))
    every_other = infinite & (np.cumsum(infinite).reshape(array.shape) % 2 == 1)
    largest = np.array(largest_finite(array.dtype)).astype(array.dtype)
    return np.where(every_other, np.where(array < 0, -largest, largest), array).astype(array.dtype)


def longest(case: Case) -> int:
    """The longest side of a block: how many numbers one device adds up, as a rule."""
    return max((side for operand in case.operands for side in operand.block), default=1)


def terms_of(case: Case) -> int:
    """The number of terms of a sum as a rule, over all devices, in each of composed calls."""
    return (case.mesh.size * max(longest(case), 1)) ** case.calls


def degree_of(case: Case) -> int:
    """The number of factors of a product of operands' elements."""
    return 1 if case.contract.linear else min(max(len(case.contract.call.moving(case)), 2), MOST_FACTORS)


@lru_cache(maxsize=256)
def is_moved(structure: Case) -> bool:
    """True if results are elements of the operands as they are, or zeros, so that any data is exact."""
    if not structure.contract.linear:
        return False
    rng = np.random.default_rng(0)
    blocks = [rng.random((*structure.mesh.sizes, *operand.block)) for operand in structure.operands]
    known = np.concatenate([[0.0], *(block.ravel() for block in blocks)])
    return all(np.isin(result, known).all() for result in structure.contract.oracle.value(structure, blocks))


def float32_accumulator(dtype: np.dtype) -> np.dtype:
    """The dtype in which terms are added up, to the end, with no rounding at every hop: float32 for 16-bit floats."""
    return np.dtype("float32") if dtype.name in ("bfloat16", "float16") else dtype


def finite(x: np.ndarray) -> np.ndarray:
    """An array with ones in place of NaN and infinities."""
    return np.where(np.isfinite(x.astype(np.float64)), x, np.ones((), x.dtype))


def some_out_of_range(case: Case, drawn: np.ndarray, indices: np.ndarray, count: int) -> np.ndarray:
    """Indices below a count; in `special` data, extremes of their dtype become indices out of range, far or just so."""
    if case.data[0].kind != "special":
        return indices
    info = np.iinfo(drawn.dtype)
    far, before, behind = (drawn == extreme for extreme in (info.max, info.min, info.max - 1))
    found = np.where(before & (info.min < 0), -1 - indices, indices)
    return np.where(far, drawn, np.where(behind, count + found % 2, found))


def scaled_to(x: np.ndarray, most: float) -> np.ndarray:
    """An array by the power of two that makes its largest finite number about that large."""
    sizes = np.abs(x.astype(np.float64))
    largest = np.max(sizes, where=np.isfinite(sizes), initial=0)
    return x if largest == 0 else (x * np.exp2(np.rint(np.log2(most / largest))).astype(x.dtype)).astype(x.dtype)
