"""What a dtype can hold exactly, and how far a rounded sum may be from the true one."""

import math

import ml_dtypes
import numpy as np


def is_float(dtype: np.dtype) -> bool:
    """Whether `dtype` is a real or complex floating-point dtype, ml_dtypes' own included."""
    dtype = np.dtype(dtype)
    return dtype.kind in "fc" or (dtype.kind == "V" and not is_integer(dtype))


NARROW = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4}
"""The integers that are narrower than a byte, and their bits."""


def is_integer(dtype: np.dtype) -> bool:
    """Whether `dtype` is a signed or unsigned integer (bool is not), those narrower than a byte included."""
    return np.dtype(dtype).kind in "iu" or np.dtype(dtype).name in NARROW


def width(dtype: np.dtype) -> int:
    """The bits of an element while it travels: those narrower than a byte are packed, a bool takes a byte."""
    return NARROW.get(np.dtype(dtype).name, 8 * np.dtype(dtype).itemsize)


def is_signed(dtype: np.dtype) -> bool:
    """Whether `dtype` holds negative numbers."""
    dtype = np.dtype(dtype)
    return dtype != bool and not dtype.name.startswith("u")


def wide(dtype: np.dtype) -> np.dtype:
    """The dtype in which sums of `dtype` lose nothing that matters: int64, float64 or complex128."""
    dtype = np.dtype(dtype)
    if dtype.kind == "c":
        return np.dtype(np.complex128)
    return np.dtype(np.float64 if is_float(dtype) else np.int64)


def exact_limit(dtype: np.dtype) -> int:
    """The largest n such that every integer in [0, n] is exact in `dtype`.

    2**24 in float32, 2**11 in float16, 2**8 in bfloat16: one more than the stored mantissa bits.
    """
    dtype = np.dtype(dtype)
    if dtype == bool:
        return 1
    if is_integer(dtype):
        return int(ml_dtypes.iinfo(dtype).max)
    real = np.dtype(np.float32) if dtype == np.complex64 else dtype
    info = ml_dtypes.finfo(real)
    return int(min(2.0 ** (int(info.nmant) + 1), float(info.max)))  # int() of a large bfloat16 overflows


def unit_roundoff(dtype: np.dtype) -> float:
    """Half the distance from 1 to the next number of `dtype`; 0 for exact dtypes."""
    dtype = np.dtype(dtype)
    if not is_float(dtype):
        return 0.0
    real = np.dtype(np.float32) if dtype == np.complex64 else dtype
    return float(ml_dtypes.finfo(real).eps) / 2


def largest_finite(dtype: np.dtype) -> float:
    """The largest finite number of a floating-point `dtype`; no number is too large for exact dtypes, which wrap."""
    dtype = np.dtype(dtype)
    if not is_float(dtype):
        return math.inf
    return float(ml_dtypes.finfo(np.dtype(np.float32) if dtype == np.complex64 else dtype).max)


def sum_error_bound(magnitude: np.ndarray, terms: int, dtype: np.dtype) -> np.ndarray:
    """How far a sum of `terms` numbers, rounded to `dtype` after every addition, may be from exact.

    In whatever order it is summed, |error| <= gamma(n) * sum(|x|) with gamma(n) = n*u / (1 - n*u),
    n the number of roundings and u the unit roundoff (Higham, Accuracy and Stability of Numerical
    Algorithms, 2nd ed., section 4.2). `magnitude` is sum(|x|), elementwise. One rounding more
    than additions is allowed for a division or a product after the sum, and one for the oracle's
    own rounding to `dtype`; complex addition rounds its parts separately and needs no more.
    Below the normal range a rounding errs by at most half the smallest subnormal number.
    """
    u = unit_roundoff(dtype)
    n = terms + 1
    if u == 0.0:
        return np.zeros_like(magnitude, dtype=np.float64)
    if n * u >= 1:
        return np.full_like(magnitude, np.inf, dtype=np.float64)
    real = np.dtype(np.float32) if np.dtype(dtype) == np.complex64 else np.dtype(dtype)
    tiny = float(ml_dtypes.finfo(real).smallest_subnormal) / 2
    return np.asarray(n * u / (1 - n * u) * magnitude.astype(np.float64) + n * tiny)
