"""Laws of `shardproof.oracles.dtypes`: what a dtype holds exactly, and bounds on what it does not."""

import math
from dataclasses import dataclass
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
    sum_error_bound,
    unit_roundoff,
    wide,
)
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.data import Data, generate
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.engines import XlaEngine
from shardproof.properties.laws import LAWS
from shardproof.properties.programs.built_in import IMPLEMENTATIONS
from shardproof.properties.runner.judging import judge
from shardproof.properties.runner.tally import Tally

FLOATS = tuple(map(np.dtype, (ml_dtypes.float8_e4m3fn, np.float16, ml_dtypes.bfloat16, np.float32)))
INTEGERS = tuple(map(np.dtype, (ml_dtypes.int4, ml_dtypes.uint4, np.int8, np.uint8, np.int16, np.uint16)))
EXPONENTS = st.integers(-4, 3)


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


@dataclass(frozen=True)
class Summation:
    """Numbers of a dtype, and which two of those that are left are added next."""

    values: np.ndarray
    order: tuple[tuple[int, int], ...]

    @property
    def magnitude(self) -> np.ndarray:
        """The sum of the absolute values."""
        return np.array([math.fsum(abs(float(value)) for value in self.values)])

    @property
    def exact(self) -> float:
        """The sum, not rounded."""
        return math.fsum(float(value) for value in self.values)

    def rounded(self) -> Any:
        """The sum, rounded to the dtype of the numbers after every addition."""
        left = list(self.values)
        for first, second in self.order:
            left.append(left.pop(first) + left.pop(second))
        return left[0]


@st.composite
def summations(draw: st.DrawFn) -> Summation:
    """Summations of numbers with all the digits of their dtype, up to 8 in size, in any order.

    No partial sum overflows, and there are few enough for a finite bound. Shrinks towards one float32 zero.
    Draws such as `[0.5, -7.25, 0.0625]` with the last two added first.
    """
    dtype = draw(st.sampled_from(FLOATS[::-1]))
    limit = exact_limit(dtype)
    numbers = st.builds(lambda digits, exponent: digits / limit * 2.0**exponent, st.integers(-limit, limit), EXPONENTS)
    values = draw(st.lists(numbers, min_size=1, max_size=min(40, limit - 2)))
    order = [(draw(st.integers(0, n - 1)), draw(st.integers(0, n - 2))) for n in range(len(values), 1, -1)]
    return Summation(np.array(values).astype(dtype), tuple(order))


@given(summation=summations())
def test_sums_stay_within_their_bound(summation: Summation) -> None:
    """Summed in any order, rounded at every step, numbers are no farther from the exact sum than the bound."""
    values, dtype = summation.values, summation.values.dtype
    error = abs(float(summation.rounded()) - summation.exact)
    assert error <= sum_error_bound(summation.magnitude, len(values) - 1, dtype)


@given(summation=summations())
def test_means_stay_within_their_bound(summation: Summation) -> None:
    """A sum that is divided by the number of its terms stays within the bound of the mean magnitude."""
    values, dtype = summation.values, summation.values.dtype
    terms = len(values)
    mean = summation.rounded() / np.array(terms).astype(dtype)
    error = abs(float(mean) - summation.exact / terms)
    assert error <= sum_error_bound(summation.magnitude / terms, terms, dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_bound_holds_below_the_normal_range(dtype: np.dtype) -> None:
    """The mean of the smallest positive number and two zeros, which is rounded to zero, is within its bound."""
    smallest = np.array([1], f"u{dtype.itemsize}").view(dtype)
    mean = smallest / np.array([3]).astype(dtype)
    assert mean == 0
    exact = smallest.astype(np.float64) / 3
    assert exact <= sum_error_bound(exact, 1, dtype)


@pytest.mark.parametrize("terms", [5, 9])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_bound_is_not_far_from_errors_that_occur(dtype: np.dtype, terms: int) -> None:
    """One, followed by unit roundoffs that all vanish, errs by more than a quarter of the bound."""
    values = np.array([1.0] + [unit_roundoff(dtype)] * (terms - 1)).astype(dtype)
    summation = Summation(values, ((0, 0), *((terms - 1 - i, 0) for i in range(1, terms - 1))))
    error = abs(float(summation.rounded()) - summation.exact)
    assert error == (terms - 1) * unit_roundoff(dtype)
    assert sum_error_bound(summation.magnitude, terms - 1, dtype) < 4 * error


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


@pytest.mark.parametrize("law", ["agreement", "value", "gradient"])
def test_parts_of_the_smallest_normal_numbers_may_be_zero(law: str) -> None:
    """XLA takes a quotient below the normal range for zero: half of the smallest normal number in float32."""
    operand = Operand((2, 1), "float32", Placement((("dp",), ())))
    case = Case(CONTRACTS["shard_mean"], MeshCase(("dp",), (1,)), "dp", (operand,), (), (Data("scaled", 150),))
    (mean,) = (i for i in IMPLEMENTATIONS if str(i) == "shard_mean[mean]")
    verdict = judge(LAWS[law], mean, case, XlaEngine(), Tally("shard_mean", "mean", law))
    assert verdict.kind == "held"
