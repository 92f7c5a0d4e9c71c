"""Bits: shifts, counts, casts and reinterpretation."""

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from shardproof.oracles.dtypes import is_float, is_integer, is_signed, width
from shardproof.properties.engines.simulate.elementwise import aligned, bits_of
from shardproof.properties.engines.simulate.env import Env
from shardproof.properties.engines.simulate.rules import Rule, result_dtype, rule


def shift(operands: Sequence[np.ndarray], kind: str) -> np.ndarray:
    """A number, shifted by an amount; one that is not in [0, width) leaves only zeros, or only the sign."""
    x, amount = operands
    bits = width(x.dtype)
    inside = (amount >= 0) & (amount < bits)
    by = np.where(inside, amount, 0).astype(np.int64)
    if kind == "left":
        return np.where(inside, np.left_shift(x.astype(np.int64), by), 0).astype(x.dtype)
    if kind == "arithmetic":
        by = np.where(inside, by, bits - 1)
        if x.dtype == np.uint64:
            return np.right_shift(x.view(np.int64), by).view(np.uint64)
        signed = x.astype(np.int64)
        if not is_signed(x.dtype):  # the highest bit is the sign all the same
            signed = signed - (signed >> bits - 1 << bits)
        return np.right_shift(signed, by).astype(x.dtype)
    unsigned = x.astype(np.int64).astype(np.uint64) & np.uint64(2**bits - 1)
    return np.where(inside, np.right_shift(unsigned, by.astype(np.uint64)), 0).astype(np.uint64).astype(x.dtype)


def shifting(kind: str) -> Rule:
    """The rule of a shift: `left`, `logical` with zeros in, or `arithmetic`, which copies the sign in."""

    def run(env: Env, equation: Any, x: np.ndarray, amount: np.ndarray) -> np.ndarray:
        return shift(aligned(env, equation, (x, amount)), kind)

    return run


rule("shift_left")(shifting("left"))
rule("shift_right_logical")(shifting("logical"))
rule("shift_right_arithmetic")(shifting("arithmetic"))


@rule("population_count")
def population_count(env: Env, equation: Any, x: np.ndarray) -> np.ndarray:
    """The number of set bits."""
    unsigned = bits_of(x) if x.dtype.kind in "iu" else x.astype(np.uint8) & np.uint8(2 ** width(x.dtype) - 1)
    return np.bitwise_count(unsigned).astype(x.dtype)


@rule("clz")
def clz(env: Env, equation: Any, x: np.ndarray) -> np.ndarray:
    """The number of zero bits above the highest set one."""
    smeared = bits_of(x)
    for distance in (1, 2, 4, 8, 16, 32):
        if distance < width(x.dtype):
            smeared = smeared | (smeared >> smeared.dtype.type(distance))
    return (width(x.dtype) - np.bitwise_count(smeared)).astype(x.dtype)


@rule("mulhi")
def mulhi(env: Env, equation: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The high half of the product of two integers."""
    x, y = aligned(env, equation, (x, y))
    product = x.astype(object) * y.astype(object)
    return (product >> width(x.dtype)).astype(np.int64 if is_signed(x.dtype) else np.uint64).astype(x.dtype)


def convert(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """`x` in another dtype: floats to integers truncate and saturate, NaN becomes 0, integers wrap."""
    if x.dtype == dtype:
        return x
    if x.dtype.kind == "c" and dtype.kind != "c":
        return x != 0 if dtype == bool else convert(x.real, dtype)
    if dtype == bool:
        return x != 0
    if is_float(x.dtype) and is_integer(dtype):
        low, high = int(ml_dtypes.iinfo(dtype).min), int(ml_dtypes.iinfo(dtype).max)
        exact = np.trunc(x.astype(np.float64))
        inside = (exact > low) & (exact < high)
        result = np.where(inside, exact, 0).astype(np.int64 if high < 2**63 else np.uint64).astype(dtype)
        result = np.where(exact >= high, np.array(high).astype(dtype), result)
        return np.where(exact <= low, np.array(low).astype(dtype), result)
    if is_integer(x.dtype) and is_integer(dtype) and "V" in (x.dtype.kind, dtype.kind):
        bits = width(dtype)
        wrapped = x.astype(np.int64) & np.int64(2 ** min(bits, 62) - 1)
        if is_signed(dtype) and bits < 8:
            wrapped = wrapped - ((wrapped >> (bits - 1)) << bits)
        return (wrapped if bits < 8 else x.astype(np.int64)).astype(dtype)
    return x.astype(dtype)


@rule("convert_element_type")
def convert_element_type(env: Env, equation: Any, x: np.ndarray) -> np.ndarray:
    """A cast."""
    return np.asarray(convert(x, result_dtype(equation)))


@rule("bitcast_convert_type")
def bitcast_convert_type(env: Env, equation: Any, x: np.ndarray) -> np.ndarray:
    """The same bits read as another dtype; a last dimension appears or goes where the widths differ."""
    dtype = result_dtype(equation)
    shape = x.shape[: env.lead] + tuple(equation.outvars[0].aval.shape)
    if math.prod(shape) == 0:
        return np.zeros(shape, dtype)
    if width(x.dtype) < 8:  # several to a byte, the first in the lowest bits
        x = joined(x)
    if width(dtype) < 8:
        return apart(np.ascontiguousarray(x), dtype).reshape(shape)
    return np.ascontiguousarray(x).reshape(-1).view(dtype).reshape(shape)


def joined(x: np.ndarray) -> np.ndarray:
    """Bytes that hold integers narrower than a byte, those of the last dimension one after the other."""
    bits = width(x.dtype)
    parts = (x.astype(np.int8).view(np.uint8) & np.uint8(2**bits - 1)).reshape(*x.shape[:-1], -1, 8 // bits)
    places = np.arange(0, 8, bits, dtype=np.uint8)
    return np.bitwise_or.reduce(parts << places, axis=-1)


def apart(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The integers narrower than a byte that an array's bytes hold."""
    places = np.arange(0, 8, width(dtype), dtype=np.uint8)
    parts = x.reshape(-1).view(np.uint8)[..., None] >> places
    return convert(parts, dtype)


@rule("reduce_precision")
def reduce_precision(env: Env, equation: Any, x: np.ndarray) -> np.ndarray:
    """`x` as a float with fewer bits would hold it: mantissa to nearest even, overflow to inf, underflow to 0."""
    exponent_bits, mantissa_bits = equation.params["exponent_bits"], equation.params["mantissa_bits"]
    exact = x.astype(np.float64)
    _, exponent = np.frexp(exact)
    step = np.ldexp(1.0, exponent - 1 - mantissa_bits)
    rounded = np.where(np.isfinite(exact) & (exact != 0), np.rint(exact / step) * step, exact)
    bias = 2 ** (exponent_bits - 1) - 1
    largest = (2.0 - 2.0**-mantissa_bits) * 2.0**bias
    rounded = np.where(np.abs(rounded) > largest, np.copysign(np.inf, rounded), rounded)
    rounded = np.where(np.abs(rounded) < 2.0 ** (1 - bias), np.copysign(0.0, exact), rounded)
    return np.where(np.isnan(exact), exact, rounded).astype(x.dtype)
