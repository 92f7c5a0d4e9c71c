"""Sums, of elements and of products, on one device or over several: products are added up in float32 at least.

|error| <= gamma(n) * sum(|x|) for n roundings in whatever order (Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., section 4.2), besides what the terms themselves are off by.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from shardproof.properties.engines.simulate.divergence import axes_of
from shardproof.properties.engines.simulate.env import Env
from shardproof.properties.engines.simulate.rules import RULES, result_dtype
from shardproof.properties.precision.wide.held import Numbers, error_of, over_blocks, together, value_of
from shardproof.properties.precision.wide.moving import of_each_device, unknown_where
from shardproof.properties.precision.wide.rounding import ACROSS_DEVICES
from shardproof.properties.precision.wide.table import (
    charged,
    exactly,
    float_rule,
    is_exact,
    limits_of,
    one,
    settled,
    values,
)

Count = Callable[[Env, Any], int]
FFT_ROUNDS = 8
"""Roundings of a Fourier transform for each time that its length is halved."""
COMPLEX_PRODUCTS = 3
"""Roundings of a term of complex products for one of real ones: its parts are sums of two products each."""


def summed(
    env: Env, equation: Any, value: Numbers, error: Any, size: Any, roundings: Any, *, whole: Numbers | None = None
) -> Numbers:
    """A sum, given what its terms are off by in all, their magnitudes in all, and how often one is rounded.

    Where it is one of certain `whole` numbers, it is exact in any order, so far as the dtype has all of them.
    """
    bounds = limits_of(env, equation)
    share = roundings * bounds.terms
    with_order = error + np.where(share < 1, share / (1 - share), np.inf) * size
    # what its terms leave of one another may be taken for zero as well, however large they are
    left = np.abs(value) - with_order < bounds.normal
    flushed = np.where(size < bounds.normal, roundings * bounds.floor, np.where(left, bounds.floor, 0.0))
    with_order = with_order + flushed * (size > 0)
    with_order = np.where(
        size + with_order > bounds.largest, np.where(np.isfinite(size), np.inf, with_order), with_order
    )
    told = charged(bounds, value, settled(with_order, [np.asarray(error)]), float(bounds.whole))
    if whole is not None and whole.any():
        told = np.where(over_blocks(whole, told) & (size <= bounds.exact), 0.0, told)
    return together(value, told, result_dtype(equation))


def _are_whole(env: Env, x: Numbers) -> np.ndarray:
    """In which data sets all are whole numbers, and certain: `[*lead]`, broadcast."""
    value = x["value"]
    return np.asarray(~env.anywhere((x["error"] != 0) | (value != np.rint(value.real))))


def linear(count: Count) -> Any:
    """The wide rule of a sum of elements; `count` is of how many. One with several operands sums each by itself."""

    def each(env: Env, equation: Any, x: Numbers) -> Numbers:
        value, error = x["value"], x["error"]
        sums = one(values(env, equation, value))
        size = one(values(env, equation, (np.abs(value) + error).astype(value.dtype))).real
        off = one(values(env, equation, error.astype(value.dtype))).real if error.any() else np.zeros(())
        return summed(env, equation, sums, off, size, max(count(env, equation) - 1, 0), whole=_are_whole(env, x))

    return operand_by_operand(each)


class Alone:
    """An equation with one of its operands, and the result of that."""

    def __init__(self, equation: Any, index: int = 0) -> None:
        self.primitive, self.params, self.source_info = equation.primitive, equation.params, equation.source_info
        self.invars, self.outvars = [equation.invars[index]], [equation.outvars[index]]


def operand_by_operand(each: Callable[[Env, Any, Numbers], Numbers]) -> Any:
    """The wide rule of a primitive that does the same with each of its operands; of integers, what it does anyway."""

    def run(env: Env, equation: Any, *operands: Numbers) -> Any:
        rule, results = RULES[equation.primitive.name], []
        for i, x in enumerate(operands):
            alone = Alone(equation, i)
            results.append(exactly(env, rule, alone, [x])[0] if is_exact(alone) else each(env, alone, x))
        return results

    return run


def _reduced(env: Env, equation: Any) -> int:
    return math.prod(equation.invars[0].aval.shape[axis] for axis in equation.params["axes"])


def _along(env: Env, equation: Any) -> int:
    return int(equation.invars[0].aval.shape[equation.params["axis"]])


def _participants(env: Env, equation: Any) -> int:
    groups = equation.params.get("axis_index_groups")
    count = max(map(len, groups)) if groups else env.mesh.axis_size(axes_of(equation))
    shape = equation.invars[0].aval.shape
    return count * math.prod(shape[name] for name in equation.params.get("axes", ()) if isinstance(name, int))


def _seen(env: Env, equation: Any) -> int:
    return math.prod(equation.params["window_dimensions"])


float_rule("reduce_sum")(linear(_reduced))
float_rule("cumsum")(linear(_along))
float_rule("reduce_window_sum")(linear(_seen))
float_rule(*ACROSS_DEVICES)(linear(_participants))


@float_rule("dot_general", "ragged_dot_general", "conv_general_dilated")
def dot(env: Env, equation: Any, lhs: Numbers, rhs: Numbers, *rest: Numbers) -> Any:
    """Sums of products: every one has the errors of both factors."""
    sizes = [value_of(x) for x in rest]

    def product(a: Numbers, b: Numbers) -> Numbers:
        return one(values(env, equation, a, b, *sizes))

    a, ea, b, eb = lhs["value"], lhs["error"], rhs["value"], rhs["error"]
    most_a, most_b = np.abs(a) + ea, np.abs(b) + eb
    error: Any = 0.0
    if eb.any():
        error = product(np.abs(a).astype(np.float64), eb).real
    if ea.any():
        error = error + product(ea, most_b).real
    unknown = np.isinf(ea), np.isinf(eb)
    if any(mask.any() for mask in unknown):  # which a factor of zero does not make known
        touched = product(unknown[0].astype(np.float64), np.ones(b.shape)) + product(
            np.ones(a.shape), unknown[1].astype(np.float64)
        )
        error = np.where(touched.real > 0, np.inf, error)
    value = product(a, b)
    terms = _contracted(equation) * (COMPLEX_PRODUCTS if value.dtype.kind == "c" else 1)
    result = summed(env, equation, value, error, product(most_a, most_b).real, terms)
    return unknown_where(of_each_device(env, *rest), [result])


def _contracted(equation: Any) -> int:
    """How many products each result adds up."""
    numbers = equation.params.get("dimension_numbers")
    if equation.primitive.name == "conv_general_dilated":
        kernel = equation.invars[1].aval.shape
        return math.prod(n for d, n in enumerate(kernel) if d != numbers.rhs_spec[0])
    if numbers is None:
        numbers = equation.params["ragged_dot_dimension_numbers"].dot_dimension_numbers
    return math.prod(equation.invars[0].aval.shape[d] for d in numbers[0][0])


@float_rule("scatter-add", "scatter-sub")
def scatter_add(env: Env, equation: Any, x: Numbers, indices: Numbers, updates: Numbers, *_: Any) -> Any:
    """Updates added up where they go, with what is there."""
    rule, at = RULES[equation.primitive.name], value_of(indices)
    negative = -1 if equation.primitive.name == "scatter-sub" else 1
    a, ea, b, eb = x["value"], x["error"], updates["value"], updates["error"]

    def added(here: Numbers, arriving: Numbers) -> Numbers:
        return one(rule(env, equation, here, at, arriving))

    value = added(a, b)
    error = added(ea, negative * eb)
    size = added(np.abs(a) + ea, negative * (np.abs(b) + eb))
    count = added(np.zeros(a.shape), negative * np.ones(b.shape))
    whole = _are_whole(env, x) & _are_whole(env, updates)
    found = summed(env, equation, value, error, size, count, whole=whole)
    return unknown_where(of_each_device(env, indices), [found])


@float_rule("fft")
def fft(env: Env, equation: Any, x: Numbers) -> Any:
    """Sums of all elements along the transformed dimensions, each times a number of magnitude 1, in rounds of a few."""
    lengths, name = equation.params["fft_lengths"], equation.params["fft_type"].name
    value = values(env, equation, x["value"])
    share = 1 / math.prod(lengths) if name in ("IFFT", "IRFFT") else 1.0
    share *= 2 if name == "IRFFT" else 1  # of half of the numbers, of which each stands for two
    axes = tuple(range(-len(lengths), 0))

    def total(part: Numbers) -> Numbers:
        whole = share * part.sum(axis=axes, keepdims=True)
        return np.broadcast_to(whole, np.broadcast_shapes(whole.shape, value.shape))

    size = total(np.abs(x["value"]) + x["error"])
    rounds = FFT_ROUNDS * math.log2(2 * math.prod(lengths))
    return summed(env, equation, value, total(x["error"]), size, rounds)


def extreme() -> Any:
    """The wide rule of a maximum or minimum over dimensions or devices: off by what its bounds are."""

    def each(env: Env, equation: Any, x: Numbers) -> Numbers:
        value, error = x["value"], error_of(x)
        found = one(values(env, equation, value))
        if not error.any():
            return together(found, 0.0, result_dtype(equation))
        high = one(values(env, equation, value + error)) - found
        low = found - one(values(env, equation, value - error))
        off = settled(np.maximum(high, low), [np.asarray(0.0)])
        unknown = over_blocks(env.anywhere(np.isinf(error)), found)
        off = np.where(np.isfinite(found), off, np.where(unknown, np.inf, 0.0))
        return together(found, off, result_dtype(equation))

    return operand_by_operand(each)


float_rule("reduce_max", "pmax", "unreduced_pmax", "cummax", "reduce_window_max")(extreme())
float_rule("reduce_min", "pmin", "unreduced_pmin", "cummin", "reduce_window_min")(extreme())
