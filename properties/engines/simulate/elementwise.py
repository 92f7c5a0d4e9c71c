"""Elementwise primitives: arithmetic in the program's dtype, with XLA's edge cases, casts, and bits."""

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import scipy.special

from shardproof.oracles.dtypes import is_float, is_integer, is_signed, wide, width
from shardproof.properties.engines.simulate.env import Env, Rule, result_dtype, result_shape, rule

Function = Callable[..., Any]
Numbers = Any  # an array, or the scalar that NumPy makes of a zero-dimensional one


def aligned(env: Env, equation: Any, operands: tuple[Any, ...]) -> list[Any]:
    """The operands at the result's rank: scalars broadcast in the block."""
    rank = env.lead + len(equation.outvars[0].aval.shape)
    return [x if x.ndim == rank else x.reshape(x.shape + (1,) * (rank - x.ndim)) for x in operands]


def elementwise(function: Function) -> Rule:
    """The rule that applies a NumPy function and rounds its result to the traced dtype."""

    def run(env: Env, equation: Any, *operands: np.ndarray) -> np.ndarray:
        return np.asarray(function(*aligned(env, equation, operands))).astype(result_dtype(equation), copy=False)

    return run


def in_wide(function: Function, held: Callable[[np.dtype], Any] = wide) -> Function:
    """`function` on floats of twice the precision, or of the dtype `held`, so that the result is rounded once."""

    def evaluate(*operands: np.ndarray) -> Any:
        return function(*(x.astype(held(x.dtype), copy=False) for x in operands))

    return evaluate


def through_bytes(function: Function) -> Function:
    """`function` with integers narrower than a byte, which NumPy does not have, as bytes."""

    def evaluate(*operands: np.ndarray) -> Any:
        narrow = operands[0].dtype.kind == "V" and not is_float(operands[0].dtype)
        return function(*(x.astype(np.int8) for x in operands)) if narrow else function(*operands)

    return evaluate


def bits_of(x: np.ndarray) -> np.ndarray:
    """The bit patterns of floats or integers, as unsigned integers."""
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


def divide(x: Numbers, y: Numbers) -> Numbers:
    """The quotient; integers are truncated, with all bits set for division by zero, and wrap for MIN / -1."""
    if not is_integer(x.dtype):
        return np.divide(x, y)
    quotient = np.floor_divide(x, y)
    if is_signed(x.dtype):
        quotient = quotient + ((np.remainder(x, y) != 0) & ((x < 0) != (y < 0)))
    return np.where(y == 0, np.array(-1).astype(x.dtype), quotient)


def remainder(x: Numbers, y: Numbers) -> Numbers:
    """The remainder of truncated division, with the sign of the dividend; the dividend for division by zero."""
    if not is_integer(x.dtype):
        return np.fmod(x.astype(np.float64), y.astype(np.float64))
    return np.where(y == 0, x, np.fmod(x, y))


def sign(x: Numbers) -> Numbers:
    """-1, 0 or 1, NaN for NaN and -0.0 for -0.0; z / |z| for complex z."""
    if x.dtype.kind == "c":
        return np.where(x == 0, x, x / np.where(x == 0, 1, np.abs(x)))
    if is_float(x.dtype):
        return np.where((x == 0) | (x != x), x, np.copysign(np.ones((), x.dtype), x))
    return np.sign(x.astype(np.int64)) if is_signed(x.dtype) else np.minimum(x, np.ones((), x.dtype))


def power(x: Numbers, y: Numbers) -> Numbers:
    """`x ** y` in wide floats; an integer exponent stays one."""
    if is_float(x.dtype):
        return np.power(x.astype(wide(x.dtype)), y.astype(wide(y.dtype)).astype(wide(x.dtype)))
    return np.power(x.astype(np.int64), y.astype(np.int64))


def sortable(x: Numbers) -> Numbers:
    """Integers in IEEE's total order of floats: -NaN < -inf < … < -0 < 0 < … < inf < NaN; others as they are."""
    if not is_float(x.dtype):
        return x
    bits = bits_of(x).astype(np.uint64)
    top = np.uint64(1) << np.uint64(8 * x.dtype.itemsize - 1)
    return np.where(bits & top, top - np.uint64(1) - (bits ^ top), bits | top)


PLAIN: dict[str, Function] = {
    "abs": np.abs, "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply,
    "div": through_bytes(divide), "rem": through_bytes(remainder), "neg": np.negative, "sign": sign,
    "max": through_bytes(np.maximum), "min": through_bytes(np.minimum),
    "floor": in_wide(np.floor), "ceil": in_wide(np.ceil), "square": lambda x: np.multiply(x, x),
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "is_finite": np.isfinite, "nextafter": np.nextafter, "pow": power,
    "eq_to": lambda x, y: sortable(x) == sortable(y), "le_to": lambda x, y: sortable(x) <= sortable(y),
    "lt_to": lambda x, y: sortable(x) < sortable(y), "not": through_bytes(np.invert),
    "and": through_bytes(np.bitwise_and), "or": through_bytes(np.bitwise_or), "xor": through_bytes(np.bitwise_xor),
    "real": np.real, "imag": np.imag, "conj": np.conj,
}  # fmt: skip

WIDE: dict[str, Function] = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan,
    "atanh": np.arctanh, "atan2": np.arctan2, "cos": np.cos, "cosh": np.cosh, "sin": np.sin, "sinh": np.sinh,
    "tan": np.tan, "tanh": np.tanh, "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log,
    "log2": np.log2, "log1p": np.log1p, "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "cbrt": np.cbrt, "one_minus_square": lambda x: 1 - x * x,
}  # fmt: skip

SPECIAL: dict[str, Function] = {  # of doubles, the widest floats that SciPy has them for
    "erf": scipy.special.erf, "erfc": scipy.special.erfc, "erf_inv": scipy.special.erfinv,
    "lgamma": scipy.special.gammaln, "digamma": scipy.special.digamma, "bessel_i0e": scipy.special.i0e,
    "bessel_i1e": scipy.special.i1e, "igamma": scipy.special.gammainc, "igammac": scipy.special.gammaincc,
    "zeta": scipy.special.zeta, "polygamma": scipy.special.polygamma,
    "regularized_incomplete_beta": scipy.special.betainc,
}  # fmt: skip

for _name, _function in PLAIN.items():
    rule(_name)(elementwise(_function))
for _name, _function in WIDE.items():
    rule(_name)(elementwise(in_wide(_function)))
for _name, _function in SPECIAL.items():
    rule(_name)(elementwise(in_wide(_function, lambda _: np.float64)))


@rule("integer_pow")
def integer_pow(env: Env, equation: Any, x: np.ndarray) -> np.ndarray:
    """`x` to a fixed integer power; the reciprocal of the positive power for a negative one."""
    y = equation.params["y"]
    if is_float(x.dtype):
        exact = x.astype(wide(x.dtype)) ** abs(y)
        return np.asarray(exact if y >= 0 else 1 / exact).astype(x.dtype)
    result, base, bits = np.ones((), x.dtype), x, y
    while bits:  # square and multiply, wrapping in the dtype
        result = (result * base).astype(x.dtype) if bits & 1 else result
        base, bits = (base * base).astype(x.dtype), bits >> 1
    return np.broadcast_to(result, x.shape)


@rule("polynomial")
def polynomial(env: Env, equation: Any, x: np.ndarray, *coefficients: np.ndarray) -> np.ndarray:
    """A polynomial of the given coefficients, the constant one first."""
    x, *rest = (y.astype(wide(y.dtype)) for y in aligned(env, equation, (x, *coefficients)))
    total = rest[-1]
    for coefficient in reversed(rest[:-1]):
        total = total * x + coefficient
    return np.broadcast_to(total, np.broadcast_shapes(*(y.shape for y in (x, *rest)))).astype(result_dtype(equation))


@rule("round")
def round_rule(env: Env, equation: Any, x: np.ndarray) -> np.ndarray:
    """The nearest integer; halfway cases away from zero (method 0) or to even (method 1)."""
    exact = x.astype(np.float64)
    if int(equation.params["rounding_method"]) == 1:
        return np.asarray(np.rint(exact)).astype(x.dtype)
    return np.asarray(np.trunc(exact + np.copysign(np.where(x == x, 0.5, 0), exact))).astype(x.dtype)


@rule("complex")
def complex_rule(env: Env, equation: Any, real: np.ndarray, imaginary: np.ndarray) -> np.ndarray:
    """A complex number from its parts."""
    real, imaginary = aligned(env, equation, (real, imaginary))
    result = np.empty(np.broadcast_shapes(real.shape, imaginary.shape), result_dtype(equation))
    result.real, result.imag = real, imaginary
    return result


@rule("select_n")
def select_rule(env: Env, equation: Any, which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    """For every element, the case whose number `which` holds there."""
    which, *cases_ = aligned(env, equation, (which, *cases))
    result = cases_[0]
    for number, case in enumerate(cases_[1:], start=1):
        result = np.where(which == number, case, result)
    return result


@rule("shift_left", "shift_right_logical", "shift_right_arithmetic")
def shift(env: Env, equation: Any, x: np.ndarray, amount: np.ndarray) -> np.ndarray:
    """A number, shifted by an amount; one that is not in [0, width) leaves only zeros, or only the sign."""
    x, amount = aligned(env, equation, (x, amount))
    name, bits = equation.primitive.name, width(x.dtype)
    inside = (amount >= 0) & (amount < bits)
    by = np.where(inside, amount, 0).astype(np.int64)
    if name == "shift_left":
        return np.where(inside, np.left_shift(x.astype(np.int64), by), 0).astype(x.dtype)
    if name == "shift_right_logical":
        unsigned = x.astype(np.int64).astype(np.uint64) & np.uint64(2**bits - 1)
        return np.where(inside, np.right_shift(unsigned, by.astype(np.uint64)), 0).astype(np.uint64).astype(x.dtype)
    by = np.where(inside, by, bits - 1)
    if x.dtype == np.uint64:
        return np.asarray(np.right_shift(x.view(np.int64), by)).view(np.uint64)
    signed = x.astype(np.int64)
    if not is_signed(x.dtype):  # the highest bit is the sign all the same
        signed = signed - (signed >> bits - 1 << bits)
    return np.asarray(np.right_shift(signed, by)).astype(x.dtype)


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
        return x.astype(np.int64).astype(dtype)
    return x.astype(dtype)


@rule("convert_element_type")
def convert_element_type(env: Env, equation: Any, x: np.ndarray) -> np.ndarray:
    """A cast."""
    return np.asarray(convert(x, result_dtype(equation)))


@rule("bitcast_convert_type")
def bitcast_convert_type(env: Env, equation: Any, x: np.ndarray) -> np.ndarray:
    """The same bits read as another dtype; a last dimension appears or goes where the widths differ."""
    dtype = result_dtype(equation)
    shape = result_shape(env, equation, x)
    if math.prod(shape) == 0:
        return np.zeros(shape, dtype)
    if width(x.dtype) < 8:  # several to a byte, the first in the lowest bits
        bits = width(x.dtype)
        parts = (x.astype(np.int8).view(np.uint8) & np.uint8(2**bits - 1)).reshape(*x.shape[:-1], -1, 8 // bits)
        x = np.bitwise_or.reduce(parts << np.arange(0, 8, bits, dtype=np.uint8), axis=-1)
    x = np.ascontiguousarray(x).reshape(-1)
    if width(dtype) < 8:
        return convert(x.view(np.uint8)[..., None] >> np.arange(0, 8, width(dtype), dtype=np.uint8), dtype).reshape(
            shape
        )
    return x.view(dtype).reshape(shape)


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
