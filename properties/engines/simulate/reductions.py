"""Reductions over dimensions of the block, and cumulative ones: accumulated wide, rounded once."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from shardproof.oracles.dtypes import is_float
from shardproof.properties.engines.simulate.env import Env
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
        exact = x if x.dtype == bool else x.astype(env.exact(x.dtype), copy=False)
        return np.asarray(function(exact, axis=axes)).astype(result_dtype(equation))

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
    state = [x.reshape(x.shape + (1,) * (kept - env.lead)) for x in operands[count:]]
    state = [np.broadcast_to(s, np.broadcast_shapes(s.shape, x.shape[:-1])) for s, x in zip(state, arrays, strict=True)]
    for position in range(arrays[0].shape[-1]):
        elements = [x[..., position] for x in arrays]
        state = evaluate(env.mapped(kept - env.lead), jaxpr, [*state, *elements])
    return state
