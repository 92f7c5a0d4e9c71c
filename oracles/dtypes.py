"""Dtypes: which numbers they hold exactly, and how far a rounded one may be off."""

import functools
import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np

WIDE = ("float64", "int64", "complex128", "uint64")
"""The dtypes that JAX only has under `jax.enable_x64`."""

FAMILIES = (
    ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float64"),
    ("int32", "int8", "int16", "uint8", "int4", "uint32", "uint16", "uint4", "int64", "uint64"),
    ("bool", "complex64", "complex128"),
)
"""A family is drawn first: the rare kinds fail in ways of their own. The simplest dtype of each is the first."""

ALL = tuple(name for family in FAMILIES for name in family if name not in WIDE)
"""The dtypes that JAX has without an option. int2 crashes XLA:CPU (see the known defects)."""


def as_dtype(name: str) -> np.dtype:
    """The NumPy dtype of a name, ml_dtypes' own included; raises ValueError if there is none."""
    if name not in (*ALL, *WIDE):
        raise ValueError(f"dtype={name!r}: expected one of {', '.join((*ALL, *WIDE))}")
    return np.dtype(getattr(ml_dtypes, name, name))


def is_float(dtype: np.dtype) -> bool:
    """True if `dtype` is a real or complex floating-point dtype, ml_dtypes' own included.

    The dtype of the derivatives of integers, JAX's `float0`, is none: it holds nothing.
    """
    dtype = np.dtype(dtype)
    return dtype.kind in "fc" or (dtype.kind == "V" and dtype.names is None and not is_integer(dtype))


NARROW = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4}
"""The integers that are narrower than a byte, and their bits."""


def is_integer(dtype: np.dtype) -> bool:
    """True if `dtype` is a signed or unsigned integer (bool is not), those narrower than a byte included."""
    return np.dtype(dtype).kind in "iu" or np.dtype(dtype).name in NARROW


def width(dtype: np.dtype) -> int:
    """The bits of an element while it travels: those narrower than a byte are packed, a bool takes a byte."""
    return NARROW.get(np.dtype(dtype).name, 8 * np.dtype(dtype).itemsize)


def is_signed(dtype: np.dtype) -> bool:
    """True if `dtype` holds negative numbers."""
    dtype = np.dtype(dtype)
    return dtype != bool and not dtype.name.startswith("u")


def wide(dtype: np.dtype) -> np.dtype:
    """The dtype in which sums of `dtype` lose nothing that matters: int64, float64 or complex128, or longer ones.

    Those of 64-bit floats are long doubles, which most platforms have with more than 64 bits; uint64 keeps its
    order only as it is.
    """
    dtype = np.dtype(dtype)
    if dtype.kind == "c":
        return np.dtype(np.clongdouble if dtype.itemsize > 8 else np.complex128)
    if is_float(dtype):
        return np.dtype(np.longdouble if dtype.itemsize > 4 else np.float64)
    return np.dtype(np.uint64 if dtype == np.uint64 else np.int64)


def widen(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """All of them in the dtype in which sums lose nothing that matters."""
    return [array.astype(wide(array.dtype)) for array in arrays]


def real_of(dtype: np.dtype) -> np.dtype:
    """The dtype of the parts of a complex dtype; any other is its own."""
    return np.zeros((), dtype).real.dtype if np.dtype(dtype).kind == "c" else np.dtype(dtype)


def exact_limit(dtype: np.dtype) -> int:
    """The largest n with all integers in [0, n] exact in `dtype`: 2**24 in float32, 2**8 in bfloat16."""
    dtype = np.dtype(dtype)
    if dtype == bool:
        return 1
    if is_integer(dtype):
        return int(ml_dtypes.iinfo(dtype).max)
    info = ml_dtypes.finfo(real_of(dtype))
    return int(min(2.0 ** (int(info.nmant) + 1), float(info.max)))  # int() of a large bfloat16 overflows


@functools.cache
def unit_roundoff(dtype: np.dtype) -> float:
    """Half the distance from 1 to the next number of `dtype`; 0 for exact dtypes."""
    dtype = np.dtype(dtype)
    if not is_float(dtype):
        return 0.0
    return float(ml_dtypes.finfo(real_of(dtype)).eps) / 2


def largest_finite(dtype: np.dtype) -> float:
    """The largest finite number of a floating-point `dtype`; no number is too large for exact dtypes, which wrap."""
    dtype = np.dtype(dtype)
    if not is_float(dtype):
        return math.inf
    return float(ml_dtypes.finfo(real_of(dtype)).max)


def smallest_normal(dtype: np.dtype) -> float:
    """The smallest positive number of a floating-point `dtype` that has all its digits; 0 for exact dtypes."""
    dtype = np.dtype(dtype)
    return float(ml_dtypes.finfo(real_of(dtype)).smallest_normal) if is_float(dtype) else 0.0


def finest(array: np.ndarray) -> float:
    """The largest power of two of which all finite elements, and their parts, are multiples; infinite for zeros."""
    if not is_float(array.dtype):
        return 1.0
    exact = np.ascontiguousarray(array).astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    values = np.abs(exact.view(np.float64).ravel())
    digits, exponents = np.frexp(values[np.isfinite(values) & (values > 0)])
    whole = (digits * 2.0**53).astype(np.int64)
    return float(np.ldexp((whole & -whole).astype(np.float64), exponents - 53).min(initial=np.inf))


def round_to(exact: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Exact values as the nearest of `dtype`, which may be infinite; integers wrap around."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(exact).astype(dtype)


def half_spacing(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The most by which numbers of that size differ from the nearest of a floating-point `dtype`: half an ulp."""
    _, exponent = np.frexp(np.abs(x).astype(np.float64))
    normal = np.where(x == 0, 0.0, np.ldexp(unit_roundoff(dtype), exponent - 1))  # the exponent of zero is that of 1/2
    finite = np.where(np.isfinite(x), normal, np.inf)
    return np.asarray(np.maximum(finite, tiny(dtype)))


def tiny(dtype: np.dtype) -> float:
    """The most by which one rounding to a floating-point `dtype` may be off below its normal range."""
    return float(ml_dtypes.finfo(real_of(dtype)).smallest_subnormal) / 2


def flush_error(dtype: np.dtype) -> float:
    """The most by which a number below the normal range may be off where backends flush it to zero.

    They do not for narrower ranges than that of float32: these are computed in float32, which has their digits.
    """
    normal = smallest_normal(dtype)
    return normal if normal <= smallest_normal(np.dtype(np.float32)) else tiny(dtype)
