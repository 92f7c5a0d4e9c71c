"""Casts, between floats and to other numbers, and bits."""

from typing import Any

import numpy as np

from shardproof.oracles.dtypes import is_float, largest_finite, real_of, smallest_normal, unit_roundoff
from shardproof.properties.engines.simulate.bits import convert
from shardproof.properties.engines.simulate.env import Env
from shardproof.properties.engines.simulate.liveness import equations
from shardproof.properties.engines.simulate.rules import RULES, result_dtype
from shardproof.properties.precision.wide.held import (
    UNKNOWN,
    Numbers,
    double,
    error_of,
    is_held,
    over_blocks,
    together,
    value_of,
)
from shardproof.properties.precision.wide.rounding import limits, literal_error, moved
from shardproof.properties.precision.wide.table import (
    charged,
    decided,
    float_rule,
    limits_of,
    one,
    wide_rule,
    without_errors,
)

FORMATS = {(5, 10): "float16", (8, 7): "bfloat16", (8, 23): "float32", (11, 52): "float64"}
"""The dtypes of exponents and mantissas of so many bits."""


def contains(narrow: np.dtype, other: np.dtype) -> bool:
    """Whether a float dtype has all numbers of another one."""
    a, b = real_of(narrow), real_of(other)
    return (
        unit_roundoff(b) <= unit_roundoff(a)
        and largest_finite(b) >= largest_finite(a)
        and smallest_normal(b) * unit_roundoff(b) <= smallest_normal(a) * unit_roundoff(a)
    )


def narrow_floats(program: Any) -> set[np.dtype]:
    """The floats with fewer digits than a double that equations of a program make."""
    dtypes = {getattr(out.aval, "dtype", None) for equation in equations(program) for out in equation.outvars}
    floats = [dtype for dtype in dtypes if isinstance(dtype, np.dtype) and is_float(dtype)]
    return {dtype for dtype in floats if unit_roundoff(dtype) > unit_roundoff(np.dtype(np.float64))}


@float_rule("convert_element_type")
def convert_element_type(env: Env, equation: Any, x: Numbers) -> Any:
    """A cast: of a float to a narrower one a rounding, to an integer what it is wherever rounding cannot change it.

    That is everywhere, where the data leaves no decision to roundings.
    """
    source, target = np.dtype(equation.invars[0].aval.dtype), result_dtype(equation)
    value, error = x["value"], x["error"]
    if not is_float(target):
        return _to_integers(env, value, error, target)
    cast = convert(value, double(target))
    bounds = limits_of(env, equation)
    if is_float(source):
        if contains(source, target):
            return together(cast, error, target)
        cast, off = _constant(env, equation, cast)
        assert env.arithmetic is not None
        if env.arithmetic.rounding.charged(target, "convert_element_type") == np.float64:  # which it is already
            return together(cast, error + off, target)
        return together(cast, charged(bounds, cast, error + off), target)
    off = np.where(error == 0, 0.0, 1.0 if source == bool else UNKNOWN)
    long = env.anywhere(~(np.abs(cast) <= bounds.exact))
    if not long.any():
        return together(cast, off, target)
    return together(cast, np.where(over_blocks(long, cast), charged(bounds, cast, off), off), target)


def _constant(env: Env, equation: Any, cast: Numbers) -> tuple[Numbers, Numbers | float]:
    """A number as it was cast, or moved, and how far that of the source may be from it.

    JAX types a number of the source weakly, and may cast it late.
    """
    assert env.arithmetic is not None
    rounding, dtype = env.arithmetic.rounding, result_dtype(equation)
    if not equation.invars[0].aval.weak_type:
        return cast, 0.0
    if rounding.moved:
        return moved(cast, dtype, rounding.moved), 0.0
    return cast, literal_error(cast, dtype) if rounding.literals else 0.0


def _to_integers(env: Env, value: Numbers, error: Numbers, target: np.dtype) -> Numbers:
    whole = convert(value, target)
    if not error.any() or decided(env):
        return together(whole, 0.0, target)
    if target == bool:
        sure = (error == 0) | (np.abs(value) > error)
    else:
        low, high = convert(value.real - error, target), convert(value.real + error, target)
        sure = (low == high) & ~np.isnan(value - error)
    return together(whole, np.where(sure | (error == 0), 0.0, UNKNOWN), target)


@wide_rule("reduce_precision")
def reduce_precision(env: Env, equation: Any, x: Numbers) -> Numbers:
    """A cast there and back: in double precision nothing, with the error of a rounding."""
    assert env.arithmetic is not None
    params = equation.params
    name = FORMATS.get((params["exponent_bits"], params["mantissa_bits"]))
    if name is None:
        raise without_errors(equation, f"floats of {params['mantissa_bits']} bits")
    dtype, value = result_dtype(equation), x["value"]
    narrow = np.dtype(name)
    if contains(dtype, narrow):
        return x
    bounds = limits(env.arithmetic.rounding, narrow, "reduce_precision")
    return together(value, charged(bounds, value, x["error"]), dtype)


@wide_rule("optimization_barrier")
def optimization_barrier(env: Env, equation: Any, *operands: Numbers) -> list[Numbers]:
    """What waits behind it has the dtype that was traced, to which it is rounded where that is charged."""
    assert env.arithmetic is not None
    if "optimization_barrier" not in env.arithmetic.rounding.own:
        return list(operands)
    return [
        together(value_of(x), charged(limits_of(env, equation, i), value_of(x), error_of(x)), result_dtype(equation, i))
        if is_held(x) and is_float(result_dtype(equation, i))
        else x
        for i, x in enumerate(operands)
    ]


@float_rule("bitcast_convert_type")
def bitcast_convert_type(env: Env, equation: Any, x: Numbers) -> Any:
    """The bits of a number as the program has it: those of one that is off are unknown, but come back as it was.

    Until then their error is that of the number, negative: nothing but data movement leaves it that.
    """
    rule = RULES["bitcast_convert_type"]
    source, target = np.dtype(equation.invars[0].aval.dtype), result_dtype(equation)
    value, error = x["value"], x["error"]
    as_traced = value.astype(source) if is_float(source) else value
    result = one(rule(env, equation, as_traced))
    whole = result.astype(double(target)) if is_float(target) else result
    if source.itemsize != target.itemsize:
        off = env.anywhere((error != 0) | ~_same(value, as_traced))
        return together(whole, np.where(over_blocks(off, whole), UNKNOWN, 0.0), target)
    moved = (
        error + np.abs(np.where(np.isfinite(value), value - as_traced.astype(value.dtype), 0.0))
        if is_float(source)
        else error
    )
    if is_float(source) and is_float(target):
        return together(whole, np.where(moved == 0, 0.0, UNKNOWN), target)
    if is_float(source):
        return together(whole, -moved, target)
    return together(whole, np.where(moved > 0, UNKNOWN, -moved), target)


def _same(value: Numbers, rounded: Numbers) -> Numbers:
    return (value == rounded.astype(value.dtype)) | (value != value)
