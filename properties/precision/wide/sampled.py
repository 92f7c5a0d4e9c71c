"""Primitives without a bound of their own: run again on operands that are moved at random, as far as they may be off.

A backward stable algorithm gives what is right for operands that are off by a few roundings of the largest of their
elements (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 1.5).
"""

from typing import Any

import numpy as np

from shardproof.oracles.dtypes import is_float
from shardproof.properties.engines.simulate.env import Env
from shardproof.properties.engines.simulate.rules import result_dtype
from shardproof.properties.precision.wide.held import UNKNOWN, Numbers, error_of, together, value_of
from shardproof.properties.precision.wide.moving import of_each_device, unknown_where
from shardproof.properties.precision.wide.table import charged, decided, float_rule, limits_of, values

SAMPLES = 6
"""How often operands are moved."""

MARGIN = 8.0
"""By how much more a result may be off than in any of the samples."""


def sampled(*, rounded: bool = True, whole: bool = True) -> Any:
    """The wide rule of a primitive whose error is sampled.

    Arguments:
        rounded: whether its algorithm is as if its operands were rounded; one that only chooses is not.
        whole: whether each element may be off by what any element of its block is.
    """

    def run(env: Env, equation: Any, *operands: Numbers) -> Any:
        numbers = [value_of(x) for x in operands]
        errors = [error_of(x) for x in operands]
        discrete = [x for x in operands if not is_float(value_of(x).dtype)]
        unknown = of_each_device(env, *discrete)
        for e in errors:
            unknown = unknown | np.isinf(e).any(axis=tuple(range(env.lead, e.ndim)))
        errors = [np.where(np.isfinite(e), e, 0.0) for e in errors]
        unit = max(limits_of(env, equation, i).unit for i in _floats(equation)) if rounded else 0.0
        reach = [e + _rounded(env, unit, x) * ((x != 0) | (e != 0)) for x, e in zip(numbers, errors, strict=True)]
        results = _listed(values(env, equation, *numbers))
        off: list[Any] = [0.0] * len(results)
        random = np.random.default_rng(0)
        for _ in range(SAMPLES if any(r.any() for r in reach) else 0):
            signs = [random.choice((-1.0, 1.0), x.shape) * random.uniform(0.5, 1.0, x.shape) for x in numbers]
            moved = [x + r * s if is_float(x.dtype) else x for x, r, s in zip(numbers, reach, signs, strict=True)]
            again = _listed(values(env, equation, *moved))
            off = [np.maximum(o, _apart(x, y)) for o, x, y in zip(off, results, again, strict=True)]
        found = [held(env, equation, i, x, o) for i, (x, o) in enumerate(zip(results, off, strict=True))]
        return unknown_where(unknown, found)

    def held(env: Env, equation: Any, index: int, value: Numbers, off: Any) -> Numbers:
        dtype, off = result_dtype(equation, index), np.broadcast_to(off, value.shape)
        if not is_float(dtype):
            return together(value, np.where((off > 0) & (not decided(env)), UNKNOWN, 0.0), dtype)
        zero = (value == 0) & (off == 0)  # beside a triangle
        error = MARGIN * (np.where(zero, 0.0, np.maximum(off, _largest(env, off))) if whole else off)
        return together(value, charged(limits_of(env, equation, index), value, error), dtype)

    return run


def _floats(equation: Any) -> list[int]:
    return [i for i, v in enumerate(equation.outvars) if is_float(v.aval.dtype)]


def _listed(results: Any) -> list[Numbers]:
    return [results] if isinstance(results, np.ndarray) else list(results)


def _rounded(env: Env, unit: float, x: Numbers) -> Numbers:
    return unit * _largest(env, np.abs(x)) if is_float(x.dtype) else np.zeros((1,) * x.ndim)


def _largest(env: Env, x: Numbers) -> Numbers:
    """The largest finite element of each block."""
    axes = tuple(range(env.lead, x.ndim))
    return np.where(np.isfinite(x), x, 0.0).max(axis=axes, keepdims=True, initial=0.0)


def _apart(one: Numbers, other: Numbers) -> Numbers:
    """How far two results are apart: not at all where both are NaN, and infinitely where one is."""
    same = (one == other) | ((one != one) & (other != other))
    difference = np.abs(one - other).astype(np.float64)
    return np.where(same, 0.0, np.where(np.isnan(difference), UNKNOWN, difference))


float_rule("cholesky", "triangular_solve", "qr", "geqrf", "householder_product", "ormqr", "eigh", "svd", "lu")(
    sampled()
)
float_rule("symmetric_product", "scatter-mul", "reduce_prod", "cumprod", "cumlogsumexp")(sampled())
float_rule("scatter-min", "scatter-max", "select_and_gather_add")(sampled(rounded=False, whole=False))
float_rule("select_and_scatter_add", "polynomial")(sampled(whole=False))
