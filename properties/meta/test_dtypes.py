"""Laws of `shardproof.oracles.dtypes`: what a dtype holds exactly, and bounds on what it does not."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardproof.oracles.dtypes import (
    exact_limit,
    finest,
    half_spacing,
    is_float,
    is_integer,
    is_signed,
    largest_finite,
    smallest_normal,
    unit_roundoff,
    wide,
)
from shardproof.properties.cases.data import Data, generate

FLOATS = tuple(map(np.dtype, (ml_dtypes.float8_e4m3fn, np.float16, ml_dtypes.bfloat16, np.float32)))
INTEGERS = tuple(map(np.dtype, (ml_dtypes.int4, ml_dtypes.uint4, np.int8, np.uint8, np.int16, np.uint16)))


def round_trips(integers: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Which of the integers (exact in float64) are the same after a stay in `dtype`."""
    return integers.astype(dtype).astype(np.float64) == integers


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_exact_limit_is_the_last_before_the_first_gap(dtype: np.dtype) -> None:
    """Every integer from 0 to the limit is exact in the dtype, and the one after it is not."""
    limit = exact_limit(dtype)
    for start in range(0, limit + 1, 2**20):
        assert round_trips(np.arange(start, min(start + 2**20, limit + 1), dtype=np.float64), dtype).all()
    assert not round_trips(np.array([limit + 1]), dtype).any()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32], ids=lambda dtype: dtype.__name__)
@given(number=st.floats(-60000, 60000, width=16) | st.sampled_from([0.0, 1.0, 0.5, 2.0**-14]))
def test_half_spacing_is_half_the_gap_behind(dtype: Any, number: float) -> None:
    """Half of the way from a number to the next one that is larger, of zero to the smallest one."""
    x = np.abs(np.array([number]).astype(dtype))
    gaps = np.nextafter(x, np.array(np.inf, dtype)).astype(np.float64) - x.astype(np.float64)
    np.testing.assert_array_equal(half_spacing(x, np.dtype(dtype)), gaps / 2)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_unit_roundoff_is_half_the_gap_after_one(dtype: np.dtype) -> None:
    """One plus the unit roundoff is midway between 1 and the next number, the smallest one above 1."""
    unsigned = np.dtype(f"u{np.dtype(dtype).itemsize}")
    one = np.array(1, dtype)
    above = (one.view(unsigned) + unsigned.type(1)).view(dtype)  # same sign and exponent, or the next: the next number
    assert float(above) - 1 == 2 * unit_roundoff(dtype)
    assert np.float64(1 + unit_roundoff(dtype)).astype(dtype) == one


@pytest.mark.parametrize(
    ("dtype", "real", "integer", "signed", "sums_in"),
    [
        ("bool", False, False, False, "int64"),
        ("int8", False, True, True, "int64"),
        ("uint32", False, True, False, "int64"),
        ("int4", False, True, True, "int64"),
        ("uint4", False, True, False, "int64"),
        ("float8_e4m3fn", True, False, True, "float64"),
        ("float8_e5m2", True, False, True, "float64"),
        ("bfloat16", True, False, True, "float64"),
        ("float16", True, False, True, "float64"),
        ("float32", True, False, True, "float64"),
        ("complex64", True, False, True, "complex128"),
    ],
)
def test_every_dtype_is_of_one_kind(dtype: str, real: bool, integer: bool, signed: bool, sums_in: str) -> None:
    """A dtype is floating-point, an integer or bool, and its sums are held in the widest dtype of its kind."""
    kind = np.dtype(dtype)
    assert (is_float(kind), is_integer(kind), is_signed(kind)) == (real, integer, signed)
    assert wide(kind) == np.dtype(sums_in)


@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype(np.complex64)], ids=str)
@pytest.mark.parametrize("exponent", [-5, 0, 3])
def test_the_finest_unit_divides_all_elements(dtype: np.dtype, exponent: int) -> None:
    """Odd and even multiples of a power of two, zeros, infinities and NaN have that power as their unit."""
    values = np.array([0, 2, 3, np.inf, np.nan, -4], np.float32) * np.float32(2.0**exponent)
    assert finest(values.astype(dtype)) == 2.0**exponent
    assert finest(np.zeros((2, 0), dtype)) == math.inf


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("dtype", FLOATS[1:], ids=str)
def test_scaled_data_reach_both_ends_of_the_range(dtype: np.dtype, degree: int) -> None:
    """Sums of products stay normal and finite, some above a thousandth of the largest and some near the smallest."""
    terms, sums, units = 6, [], []
    for seed in range(40):
        data = generate(Data("scaled", seed), (terms, 3), dtype, terms=terms, degree=degree).astype(np.float64)
        sums.append((np.abs(data) ** degree).sum(axis=0).max())
        units.append(finest(data) ** degree)
    assert largest_finite(dtype) / 2000 < max(sums) <= largest_finite(dtype)
    assert smallest_normal(dtype) <= min(units) < smallest_normal(dtype) * 2000
