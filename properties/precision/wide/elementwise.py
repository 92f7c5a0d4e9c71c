"""How far off an elementwise function is when its operands are, and how often it is rounded itself.

Each propagation is a bound, by the mean value theorem with the derivative at the worst place of the operand's
interval: nothing is left out as being of second order. It takes the result, and then each operand with its error.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.special

from shardproof.properties.engines.simulate.elementwise import aligned
from shardproof.properties.engines.simulate.env import Env
from shardproof.properties.engines.simulate.rules import result_dtype
from shardproof.properties.precision.wide.held import Numbers, together
from shardproof.properties.precision.wide.table import (
    charged,
    float_rule,
    has_complex,
    limits_of,
    settled,
    values,
    wide_rule,
    without_errors,
)

X = Any  # an array of doubles
Propagation = Callable[..., X]

APPROXIMATED = 8.0
"""Roundings of a function that a backend approximates: four units in the last place."""

SHORT = 2.0**12
"""The parts of 1 of which the operands of exact arithmetic are made, up to the square of that."""


class Function(NamedTuple):
    """What is known of a function's error.

    Arguments:
        propagation: how far it is off because its operands are.
        roundings: how often it is rounded itself; 0: it is exact.
        of_complex: whether that is so of complex numbers as well.
    """

    propagation: Propagation
    roundings: Numbers = APPROXIMATED
    of_complex: bool = False


def beyond(x: X, e: X) -> X:
    """The smallest magnitude that an operand may have."""
    return np.maximum(np.abs(x) - e, 0)


def _only_off(error: X, e: X) -> X:
    """The error, of operands that are off: of others there is none, though the formula may have no value."""
    return np.where(e == 0, 0.0, error)


def _quotient(y: X, a: X, ea: X, b: X, eb: X) -> X:
    size = np.abs(b)
    return np.where((eb >= size) & (eb > 0), np.inf, (np.abs(y) * eb + ea) / (size - eb))


def _logarithm(x: X, e: X) -> X:
    """How far the logarithm of a positive number is off."""
    return _only_off(np.where(e < x, -np.log1p(-np.minimum(e / x, 1)), np.inf), e)


def _root(y: X, x: X, e: X) -> X:
    return _only_off(np.where(e <= x, e / (y + np.sqrt(np.maximum(x - e, 0))), np.inf), e)


def _reciprocal_root(y: X, x: X, e: X) -> X:
    return _only_off(np.where(e < x, y * np.expm1(-0.5 * np.log1p(-np.minimum(e / x, 1))), np.inf), e)


def _cube_root(y: X, x: X, e: X) -> X:
    least = beyond(x, e)
    return np.where(least > 0, e / (3 * np.cbrt(least) ** 2), np.cbrt(4 * e))


def _power(y: X, x: X, ex: X, p: X, ep: X) -> X:
    relative = (np.abs(p) + ep) * _logarithm(np.abs(x), ex) + ep * np.abs(np.log(np.abs(x)))
    return np.where((ex == 0) & (ep == 0), 0.0, np.abs(y) * np.expm1(relative))


def _inverse(derivative: Callable[[X], X]) -> Propagation:
    """Of a function on [-1, 1] whose derivative grows towards the ends."""

    def propagation(y: X, x: X, e: X) -> X:
        most = np.abs(x) + e
        return _only_off(np.where(most < 1, e * derivative(np.minimum(most, 1)), np.inf), e)

    return propagation


def _area(y: X, x: X, e: X) -> X:
    """The inverse of cosh, which is defined from 1 on, and steep there."""
    least = x - e
    return _only_off(np.where(least > 1, e / np.sqrt(np.maximum(least * least - 1, 0)), np.inf), e)


def _falling(derivative: Callable[[X], X]) -> Propagation:
    """Of a function whose derivative is the smaller the larger the operand's magnitude."""
    return lambda y, x, e: e * derivative(beyond(x, e))


def _rising(derivative: Callable[[X], X]) -> Propagation:
    """Of a function whose derivative is the larger the larger the operand's magnitude."""
    return lambda y, x, e: e * derivative(np.abs(x) + e)


def _step(function: Callable[[X], X]) -> Propagation:
    """Of a function that nowhere falls: at the ends of the interval."""
    return lambda y, x, e: np.maximum(np.abs(function(x + e) - y), np.abs(y - function(x - e)))


def _tangent(y: X, x: X, e: X) -> X:
    least = np.abs(np.cos(x)) - e
    return _only_off(np.where(least > 0, e / np.maximum(least, 0) ** 2, np.inf), e)


def _angle(angle: X, y: X, ey: X, x: X, ex: X) -> X:
    off, radius = np.hypot(ex, ey), np.hypot(x, y)
    turned = np.where(off < radius, np.pi / 2 * off / radius, np.inf)  # asin t <= pi/2 t
    return _only_off(np.where((x - ex < 0) & (np.abs(y) <= ey) & (ey > 0), np.inf, turned), off)


def _remainder(y: X, a: X, ea: X, b: X, eb: X) -> X:
    """Of a quotient that is cut off: unless it is certain where, the remainder may be any that is smaller than b."""
    quotient = a / b
    off = _quotient(quotient, a, ea, b, eb)
    off = off + 4 * np.finfo(np.float64).eps * np.abs(quotient)  # which may be rounded to a whole number
    whole = np.trunc(quotient)
    sure = (np.trunc(quotient - off) == whole) & (np.trunc(quotient + off) == whole)
    other = np.where(eb < np.abs(b), np.abs(y) + np.abs(b) + eb, np.inf)
    return _only_off(np.where(sure, ea + np.abs(whole) * eb, other), ea + eb)


def _larger(y: X, a: X, ea: X, b: X, eb: X) -> X:
    return np.where(a - ea > b + eb, ea, np.where(b - eb > a + ea, eb, np.maximum(ea, eb)))


def _smaller(y: X, a: X, ea: X, b: X, eb: X) -> X:
    return np.where(a + ea < b - eb, ea, np.where(b + eb < a - ea, eb, np.maximum(ea, eb)))


def _hyperbolic_secant_squared(x: X) -> X:
    return 1 / np.cosh(x) ** 2


SUM = Function(lambda y, a, ea, b, eb: ea + eb, 1, True)
SQUARE = lambda y, x, e: (2 * np.abs(x) + e) * e  # noqa: E731 (one of the formulas below)

FUNCTIONS: dict[str, Function] = {
    "neg": Function(lambda y, x, e: e, 0, True),
    "real": Function(lambda y, x, e: e, 0, True),
    "imag": Function(lambda y, x, e: e, 0, True),
    "conj": Function(lambda y, x, e: e, 0, True),
    "complex": Function(lambda y, a, ea, b, eb: np.hypot(ea, eb), 0, True),
    "add": SUM,
    "add_any": SUM,
    "sub": SUM,
    "mul": Function(lambda y, a, ea, b, eb: np.abs(a) * eb + np.abs(b) * ea + ea * eb, 1, True),
    "div": Function(_quotient, 2, True),
    "square": Function(SQUARE, 1, True),
    "one_minus_square": Function(SQUARE, 2),
    "sqrt": Function(_root, 2),
    "rsqrt": Function(_reciprocal_root),
    "cbrt": Function(_cube_root),
    "exp": Function(lambda y, x, e: np.abs(y) * np.expm1(e), of_complex=True),
    "exp2": Function(lambda y, x, e: np.abs(y) * np.expm1(e * np.log(2))),
    "expm1": Function(lambda y, x, e: np.abs(y + 1) * np.expm1(e)),
    "log": Function(lambda y, x, e: _logarithm(x, e)),
    "log2": Function(lambda y, x, e: _logarithm(x, e) / np.log(2)),
    "log1p": Function(lambda y, x, e: _logarithm(1 + x, e)),
    "sin": Function(lambda y, x, e: np.minimum(e, 2)),
    "cos": Function(lambda y, x, e: np.minimum(e, 2)),
    "tan": Function(_tangent),
    "asin": Function(_inverse(lambda x: 1 / np.sqrt(1 - x * x))),
    "acos": Function(_inverse(lambda x: 1 / np.sqrt(1 - x * x))),
    "atanh": Function(_inverse(lambda x: 1 / (1 - x * x))),
    "erf_inv": Function(_inverse(lambda x: np.sqrt(np.pi) / 2 * np.exp(scipy.special.erfinv(x) ** 2))),
    "atan": Function(_falling(lambda x: 1 / (1 + x * x))),
    "atan2": Function(_angle),
    "sinh": Function(_rising(np.cosh)),
    "cosh": Function(_rising(np.sinh)),
    "tanh": Function(_falling(_hyperbolic_secant_squared)),
    "acosh": Function(_area),
    "rem": Function(_remainder, 0),
    "asinh": Function(_falling(lambda x: 1 / np.sqrt(1 + x * x))),
    "erf": Function(_falling(lambda x: 2 / np.sqrt(np.pi) * np.exp(-x * x))),
    "erfc": Function(_falling(lambda x: 2 / np.sqrt(np.pi) * np.exp(-x * x)), 2 * APPROXIMATED),
    "max": Function(_larger, 0),
    "min": Function(_smaller, 0),
    "clamp": Function(lambda y, a, ea, x, ex, b, eb: np.maximum(np.maximum(ea, ex), eb), 0),
    "floor": Function(_step(np.floor), 0),
    "ceil": Function(_step(np.ceil), 0),
    "sign": Function(_step(np.sign), 0),
}


def _short(x: X) -> X:
    return (np.abs(x) <= SHORT**2) & (x * SHORT == np.rint(x * SHORT))


def result(env: Env, equation: Any, function: Function, *operands: Numbers, roundings: Any = None) -> Numbers:
    """What the rule for values gives, with the error of a function."""
    if has_complex(equation) and not function.of_complex:
        raise without_errors(equation, f"{equation.primitive.name} of complex numbers")
    operands = tuple(aligned(env, equation, operands))
    numbers, errors = [x["value"] for x in operands], [x["error"] for x in operands]
    value = values(env, equation, *numbers)
    interleaved = [part for pair in zip(numbers, errors, strict=True) for part in pair]
    error = settled(function.propagation(value, *interleaved), errors)
    often = function.roundings if roundings is None else roundings
    bounds = limits_of(env, equation)
    if has_complex(equation):
        often *= 4  # a complex product or magnitude is a root or a sum of several
    elif (certain := np.asarray((often == 1) & (error == 0))).any():
        # of short numbers a whole one is itself, such as an index that is made of floats
        whole = certain & (value == np.rint(value)) & (np.abs(value) <= bounds.exact)
        often = np.where(whole & np.logical_and.reduce(np.broadcast_arrays(*map(_short, numbers))), 0.0, often)
    return together(value, charged(bounds, value, error, often), result_dtype(equation))


def elementwise(function: Function) -> Any:
    """The wide rule of a function."""

    def run(env: Env, equation: Any, *operands: Numbers) -> Any:
        return result(env, equation, function, *operands)

    return run


for _name, _function in FUNCTIONS.items():
    float_rule(_name)(elementwise(_function))


@float_rule("abs")
def absolute(env: Env, equation: Any, x: Numbers) -> Any:
    """A magnitude, which of a complex number is a root."""
    return result(env, equation, Function(lambda y, x, e: e, int(has_complex(equation)), True), x)


@float_rule("integer_pow")
def integer_pow(env: Env, equation: Any, x: Numbers) -> Any:
    """A fixed integer power, or its reciprocal: by as many products as it has factors."""
    n = equation.params["y"]

    def propagation(y: X, x: X, e: X) -> X:
        if n >= 0:
            return n * (np.abs(x) + e) ** max(n - 1, 0) * e
        least = beyond(x, e)
        return _only_off(np.where(least > 0, -n * least ** (n - 1.0) * e, np.inf), e)

    return result(env, equation, Function(propagation, max(abs(n), 1), True), x)


@wide_rule("logistic")
def logistic(env: Env, equation: Any, x: Numbers) -> Numbers:
    """Backends take 1 / (1 + exp(-x)), which is zero where the exponential overflows."""
    largest = limits_of(env, equation).largest
    steepest = _falling(lambda x: _hyperbolic_secant_squared(x / 2) / 4)

    def propagation(y: X, x: X, e: X) -> X:
        return np.where(np.exp(e - x) > largest, y, 0) + steepest(y, x, e)

    return result(env, equation, Function(propagation), x)


@float_rule("pow")
def power(env: Env, equation: Any, x: Numbers, p: Numbers) -> Any:
    """A power: backends take the exponential of a multiple of the logarithm, whose own error that one multiplies."""
    x, p = aligned(env, equation, (x, p))
    exponent = np.abs(p["value"].astype(np.float64) * np.log(np.abs(x["value"])))
    roundings = APPROXIMATED + 2 * np.where(np.isfinite(exponent), exponent, 0)
    return result(env, equation, Function(_power), x, p, roundings=roundings)


@wide_rule("round")
def rounded(env: Env, equation: Any, x: Numbers) -> Any:
    """To an integer, which an operand that is off may miss."""

    def propagation(y: X, x: X, e: X) -> X:
        return _step(lambda z: values(env, equation, z))(y, x, e)

    return result(env, equation, Function(propagation, 0), x)


@wide_rule("is_finite")
def is_finite(env: Env, equation: Any, x: Numbers) -> Numbers:
    """Whether a number is finite: unknown where the number is."""
    return together(np.isfinite(x["value"]), np.where(np.isinf(x["error"]), np.inf, 0.0), np.dtype(bool))


POWER_OF_TWO = 0.5
"""The fraction of such a number, as `frexp` has it."""


@float_rule("div")
def quotient(env: Env, equation: Any, a: Numbers, b: Numbers) -> Any:
    """A quotient: compilers multiply by the reciprocal of what they know, which is exact of powers of two alone."""
    a, b = aligned(env, equation, (a, b))
    roundings = np.where(np.frexp(np.abs(b["value"]))[0] == POWER_OF_TWO, 1.0, 2.0)
    return result(env, equation, FUNCTIONS["div"], a, b, roundings=roundings)
