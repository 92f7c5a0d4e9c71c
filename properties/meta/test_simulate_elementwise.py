"""The simulate engine's elementwise rules, against XLA on one device."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from shardproof.properties.engines.simulate import simulate

FLOATS = ("float32", "bfloat16", "float16")
SIGNED = ("int8", "int16", "int32")
UNSIGNED = ("uint8", "uint16", "uint32")
INTEGERS = (*SIGNED, *UNSIGNED)
REAL = (*FLOATS, *INTEGERS)
COMPLEX = ("complex64",)
ALL = (*REAL, *COMPLEX)


def numbers(dtype: str) -> np.ndarray:
    """Numbers of a dtype whose sums, products and quotients show every edge: small, extreme, and not finite."""
    kind = np.dtype(dtype)
    if kind == bool:
        return np.array([False, True])
    if kind.kind == "c":
        return np.array([0, 1, -1, 2j, 3 - 4j, -0.5 + 0.25j], kind)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        return np.array([0, 1, 2, 3, 7, limits.max, limits.min, *([-1, -2, -7] if limits.min else [])], kind)
    return np.array([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1.5, 8.0, np.inf, -np.inf, np.nan], kind)


def pairs(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of `numbers`."""
    x = numbers(dtype)
    return np.repeat(x, len(x)), np.tile(x, len(x))


def same(ours: np.ndarray, theirs: Any) -> bool:
    """Bit for bit, a NaN being equal to every NaN."""
    other = np.asarray(theirs)
    equal = (ours == other) | ((ours != ours) & (other != other))
    return ours.dtype == other.dtype and ours.shape == other.shape and bool(equal.all())


def check(function: Callable[..., Any], *args: Any) -> None:
    """The engine's results on `args` equal those of `jit`."""
    ours, theirs = simulate(function, *args), jax.jit(function)(*args)
    wrong = jax.tree.map(lambda a, b: not same(a, b), ours, theirs)
    assert not any(jax.tree.leaves(wrong)), f"at {wrong}: got {ours}, but XLA says {theirs}, from {args}"


UNARY: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "abs": (lax.abs, (*FLOATS, *SIGNED)),
    "neg": (lax.neg, ALL),
    "sign": (lax.sign, (*FLOATS, *INTEGERS)),
    "floor": (lax.floor, FLOATS),
    "ceil": (lax.ceil, FLOATS),
    "round to even": (lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), FLOATS),
    "round away": (lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), FLOATS),
    "is_finite": (lax.is_finite, FLOATS),
    "not": (lax.bitwise_not, (*INTEGERS, "bool")),
    "population_count": (lax.population_count, INTEGERS),
    "clz": (lax.clz, INTEGERS),
    "square": (lax.square, (*REAL, *COMPLEX)),
    "cube": (lambda x: lax.integer_pow(x, 3), REAL),
    "reciprocal": (lambda x: lax.integer_pow(x, -1), ("float32",)),
    "real": (lax.real, COMPLEX),
    "imag": (lax.imag, COMPLEX),
    "conj": (lax.conj, COMPLEX),
    "sqrt of squares": (lambda x: lax.sqrt(x * x), ("float32",)),
    "reduce_precision": (lambda x: lax.reduce_precision(x, 5, 2), ("float32",)),
    "copy": (lambda x: jnp.copy(x), ("float32",)),
    "stop_gradient": (lax.stop_gradient, ("float32",)),
}


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    """A function of one number is what XLA says, on every dtype and at every edge."""
    function, dtypes = UNARY[name]
    check(lambda *xs: [function(x) for x in xs], *(numbers(d) for d in dtypes))


BINARY: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "add": (lax.add, ALL),
    "sub": (lax.sub, ALL),
    "mul": (lax.mul, REAL),
    "div": (lax.div, (*INTEGERS, "float32", "float16")),
    "rem": (lax.rem, (*INTEGERS, "float32")),
    "max": (lax.max, (*REAL, "bool")),
    "min": (lax.min, (*REAL, "bool")),
    "eq": (lax.eq, (*ALL, "bool")),
    "ne": (lax.ne, (*ALL, "bool")),
    "lt": (lax.lt, (*REAL, "bool")),
    "le": (lax.le, REAL),
    "gt": (lax.gt, REAL),
    "ge": (lax.ge, REAL),
    "and": (lax.bitwise_and, (*INTEGERS, "bool")),
    "or": (lax.bitwise_or, (*INTEGERS, "bool")),
    "xor": (lax.bitwise_xor, (*INTEGERS, "bool")),
    "shift_left": (lax.shift_left, INTEGERS),
    "shift_right_logical": (lax.shift_right_logical, INTEGERS),
    "shift_right_arithmetic": (lax.shift_right_arithmetic, INTEGERS),
    "nextafter": (lax.nextafter, ("float32",)),
    "complex": (lax.complex, ("float32",)),
    "mulhi": (getattr(lax, "mulhi", lambda x, y: x), ("int32", "uint32")),
    "floor division": (lambda x, y: x // jnp.where(y == 0, 1, y), (*SIGNED, *UNSIGNED)),
    "modulo": (lambda x, y: x % jnp.where(y == 0, 1, y), (*SIGNED, *UNSIGNED)),
}


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str) -> None:
    """A function of two numbers is what XLA says, on every pair of numbers of every dtype."""
    function, dtypes = BINARY[name]
    operands = [pairs(d) for d in dtypes]
    check(lambda xs, ys: [function(x, y) for x, y in zip(xs, ys, strict=True)], *map(list, zip(*operands, strict=True)))


def test_total_order() -> None:
    """Comparisons in total order put -NaN first, -0 before 0, and NaN last."""
    x, y = pairs("float32")
    for primitive in ("lt_to_p", "le_to_p", "eq_to_p"):
        check(getattr(lax, primitive).bind, x, y)


REAL_FUNCTIONS: dict[str, tuple[Callable[..., Any], np.ndarray]] = {
    name: (getattr(lax, name, jnp.log2), np.linspace(low, high, 101, dtype=np.float32))
    for name, (low, high) in {
        "acos": (-1, 1), "acosh": (1, 9), "asin": (-1, 1), "asinh": (-9, 9), "atan": (-9, 9), "atanh": (-0.99, 0.99),
        "cos": (-9, 9), "cosh": (-9, 9), "sin": (-9, 9), "sinh": (-9, 9), "tan": (-1.5, 1.5), "tanh": (-9, 9),
        "exp": (-20, 20), "exp2": (-4, 4), "expm1": (-9, 9), "log": (0.01, 99), "log1p": (-0.9, 99), "log2": (0.01, 99),
        "logistic": (-20, 20), "sqrt": (0, 99), "rsqrt": (0.01, 99), "cbrt": (-99, 99), "erf": (-3, 3),
        "erfc": (-3, 3), "erf_inv": (-0.99, 0.99), "lgamma": (0.1, 20), "digamma": (0.5, 20),
        "bessel_i0e": (-9, 9), "bessel_i1e": (-9, 9),
    }.items()
}  # fmt: skip


NEAR = {"float32": (1e-4, 1e-6), "bfloat16": (0.02, 0.02), "float64": (1e-6, 1e-9)}
"""How near XLA's approximations are, relative and absolute: of 16-bit floats to within a rounding."""


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("name", REAL_FUNCTIONS)
def test_real_function(name: str, dtype: str) -> None:
    """A transcendental function is XLA's to within that one's approximation, which has its own for doubles."""
    function, x = REAL_FUNCTIONS[name]
    with jax.enable_x64(dtype == "float64"):
        ours, theirs = simulate(function, x.astype(dtype)), np.asarray(jax.jit(function)(x.astype(dtype)))
    assert ours.dtype == theirs.dtype == dtype
    rtol, atol = NEAR[dtype]
    np.testing.assert_allclose(ours.astype(np.float64), theirs.astype(np.float64), rtol=rtol, atol=atol)


def test_real_functions_of_several_numbers() -> None:
    """Powers, angles and incomplete gamma and beta functions are XLA's to within its approximation."""
    x, y = np.linspace(0.5, 4, 12, dtype=np.float32), np.linspace(3, 1, 12, dtype=np.float32)

    def functions(x: Any, y: Any) -> list[Any]:
        special = [lax.igamma(x, y), lax.igammac(x, y), lax.zeta(x + 1, y), lax.betainc(x, y, y / 4)]
        return [lax.pow(x, y), lax.pow(x, lax.full_like(x, 2, jnp.int32)), lax.atan2(x, -y), *special]

    for ours, theirs in zip(simulate(functions, x, y), jax.jit(functions)(x, y), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3)
    orders = np.arange(1, 5, dtype=np.float32)
    polygamma = lax.polygamma
    np.testing.assert_allclose(simulate(polygamma, orders, y[:4]), jax.jit(polygamma)(orders, y[:4]), rtol=1e-3)


CASTS = (*REAL, "bool", "complex64", "float8_e4m3fn", "float8_e5m2", "int4", "uint4")


@pytest.mark.parametrize("source", CASTS)
def test_casts(source: str) -> None:
    """A cast truncates, saturates, wraps and rounds as XLA's does, between any two dtypes."""
    dtype = jnp.dtype(source)
    if source in ("int4", "uint4"):
        x = np.arange(16).astype(np.int8).astype(dtype)
    elif source.startswith("float8"):
        x = np.array([0, -0.0, 1, -1, 0.5, 2.5, 7, 100, np.nan]).astype(dtype)
    else:
        x = numbers(source)
    extra = [1e10, -1e10, 300.0, -200.5, 70000.0, 2.0**31] if source == "float32" else []
    x = np.concatenate([x, np.array(extra, x.dtype)])
    targets = [t for t in CASTS if not (dtype.kind == "c" and t not in COMPLEX)]
    check(lambda x: [lax.convert_element_type(x, jnp.dtype(t)) for t in targets], x)


def test_bitcasts() -> None:
    """A bitcast keeps the bits, and splits or joins elements of other widths."""
    x = np.arange(24, dtype=np.int32).reshape(2, 3, 4) * 123456789

    def casts(x: Any) -> list[Any]:
        narrow = lax.bitcast_convert_type(x, jnp.uint8)
        return [lax.bitcast_convert_type(x, jnp.uint32), narrow, lax.bitcast_convert_type(narrow, jnp.int32)]

    check(casts, x)


def test_selection() -> None:
    """select_n and clamp choose by scalar and by array."""
    x, y = np.arange(-6, 6, dtype=np.int32).reshape(3, 4), np.full((3, 4), 2, np.int32)
    check(lambda x, y: [lax.select_n(x > 0, x, y), lax.select_n(x[0, 0] < 0, x, y), lax.clamp(-2, x, 3)], x, y)
    check(lambda x, y: [lax.select_n(jnp.abs(x) % 3, x, y, x * y), lax.clamp(x, y, x + 1)], x, y)
