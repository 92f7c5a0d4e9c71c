"""Reductions over dimensions of the block, cumulative ones, and orders.

Sums are accumulated wide and rounded once. NaN sorts last and wins every maximum and minimum.
"""

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from shardproof.oracles.dtypes import is_float
from shardproof.properties.engines.simulate.env import Env, common_lead, spread
from shardproof.properties.engines.simulate.interpreter import evaluate
from shardproof.properties.engines.simulate.rules import Rule, result_dtype, rule, shifted


def extreme(dtype: np.dtype, largest: bool) -> np.ndarray:
    """The largest or smallest number of a dtype: what the minimum or maximum of nothing is."""
    dtype = np.dtype(dtype)
    if dtype == bool:
        return np.array(largest)
    if is_float(dtype):
        value = np.array(np.inf if largest else -np.inf).astype(dtype)
        finite = ml_dtypes.finfo(dtype)
        return value if np.isinf(value) else np.array(finite.max if largest else finite.min, dtype)
    limits = ml_dtypes.iinfo(dtype)
    return np.array(int(limits.max if largest else limits.min)).astype(dtype)


def reduction(function: Callable[..., Any]) -> Rule:
    """The rule that applies a NumPy reduction to wide numbers and rounds the result."""

    def run(env: Env, equation: Any, x: np.ndarray) -> np.ndarray:
        axes = shifted(env, equation.params["axes"])
        exact = None if x.dtype == bool else env.exact(x.dtype)
        return np.asarray(function(x, axis=axes, dtype=exact)).astype(result_dtype(equation))

    return run


def ordered(function: Callable[..., Any], largest: bool) -> Rule:
    """The rule of the maximum or minimum, with its identity for empty dimensions."""

    def run(env: Env, equation: Any, x: np.ndarray) -> np.ndarray:
        axes = shifted(env, equation.params["axes"])
        if any(x.shape[axis] == 0 for axis in axes):
            shape = x.shape[: env.lead] + tuple(equation.outvars[0].aval.shape)
            return np.broadcast_to(extreme(x.dtype, largest), shape)
        exact = x if x.dtype.kind in "biufc" else x.astype(np.float32)
        return np.asarray(function(exact, axis=axes)).astype(x.dtype)

    return run


def bitwise(ufunc: np.ufunc) -> Rule:
    """The rule that folds with a bitwise operation."""

    def run(env: Env, equation: Any, x: np.ndarray) -> np.ndarray:
        return np.asarray(ufunc.reduce(x, axis=shifted(env, equation.params["axes"]))).astype(x.dtype)

    return run


rule("reduce_sum")(reduction(np.sum))
rule("reduce_prod")(reduction(np.prod))
rule("reduce_max")(ordered(np.max, largest=False))
rule("reduce_min")(ordered(np.min, largest=True))
rule("reduce_and")(bitwise(np.bitwise_and))
rule("reduce_or")(bitwise(np.bitwise_or))
rule("reduce_xor")(bitwise(np.bitwise_xor))


def cumulative(function: Callable[..., Any]) -> Rule:
    """The rule that applies a cumulative NumPy function along a dimension, from either end."""

    def run(env: Env, equation: Any, x: np.ndarray) -> np.ndarray:
        axis = env.lead + equation.params["axis"]
        exact = x if x.dtype == bool else x.astype(env.exact(x.dtype), copy=False)
        exact = np.flip(exact, axis) if equation.params["reverse"] else exact
        result = function(exact, axis=axis)
        return (np.flip(result, axis) if equation.params["reverse"] else result).astype(result_dtype(equation))

    return run


rule("cumsum")(cumulative(np.cumsum))
rule("cumprod")(cumulative(np.cumprod))
rule("cummax")(cumulative(np.maximum.accumulate))
rule("cummin")(cumulative(np.minimum.accumulate))
rule("cumlogsumexp")(cumulative(np.logaddexp.accumulate))


@rule("reduce")
def reduce(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """Folds arrays, element by element in row-major order, with a function of the program's."""
    count = len(operands) // 2
    dimensions = equation.params["dimensions"]
    jaxpr = equation.params["jaxpr"]
    rank = operands[0].ndim
    order = [d for d in range(rank) if d - env.lead not in dimensions] + list(shifted(env, dimensions))
    kept = rank - len(dimensions)
    arrays = [x.transpose(order).reshape(*(x.shape[d] for d in order[:kept]), -1) for x in operands[:count]]
    return fold(env, jaxpr, arrays, operands[count:])


def fold(env: Env, jaxpr: Any, arrays: Sequence[np.ndarray], starts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Folds arrays `[*lead, *kept, n]` along their last dimension, from `starts` `[*lead]`."""
    kept = arrays[0].ndim - 1 - env.lead
    state = [x.reshape(x.shape + (1,) * kept) for x in starts]
    state = [np.broadcast_to(s, np.broadcast_shapes(s.shape, x.shape[:-1])) for s, x in zip(state, arrays, strict=True)]
    for position in range(arrays[0].shape[-1]):
        elements = [x[..., position] for x in arrays]
        state = evaluate(env.mapped(kept), jaxpr, [*state, *elements])
    return state


def comparable(x: np.ndarray) -> np.ndarray:
    """Numbers in a dtype that NumPy itself sorts, NaN last; exact. `float8_e5m2` says that it is one of NumPy's."""
    return x if x.dtype.kind in "biufc" and x.dtype.isbuiltin == 1 else x.astype(np.float32)


def ranking(keys: Sequence[np.ndarray], axis: int) -> np.ndarray:
    """The indices that sort by the first key, ties by the next, and equal elements as they stand."""
    return np.lexsort([comparable(key) for key in reversed(keys)], axis=axis)


@rule("sort")
def sort(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """All operands in the order of the first `num_keys`, along a dimension."""
    axis = env.lead + equation.params["dimension"]
    lead = common_lead(env, *operands)
    full = [spread(env, lead, x) for x in operands]
    order = ranking(full[: equation.params["num_keys"]], axis)
    return [np.take_along_axis(x, order, axis) for x in full]


@rule("top_k")
def top_k(env: Env, equation: Any, x: np.ndarray) -> list[np.ndarray]:
    """The k largest elements in descending order and their indices; of equal ones the first."""
    axis = env.lead + equation.params.get("axis", x.ndim - env.lead - 1) % (x.ndim - env.lead)
    backwards = np.flip(ranking([np.flip(x, axis)], axis), axis)
    order = np.moveaxis(x.shape[axis] - 1 - backwards, axis, -1)[..., : equation.params["k"]]
    order = np.moveaxis(order, -1, axis)
    return [np.take_along_axis(x, order, axis), order.astype(result_dtype(equation, 1))]


def first_extreme(function: Callable[..., Any]) -> Rule:
    """The rule of the index of the first largest, or smallest, element."""

    def run(env: Env, equation: Any, x: np.ndarray) -> np.ndarray:
        (axis,) = equation.params["axes"]
        return np.asarray(function(comparable(x), axis=env.lead + axis)).astype(result_dtype(equation))

    return run


rule("argmax")(first_extreme(np.argmax))
rule("argmin")(first_extreme(np.argmin))
