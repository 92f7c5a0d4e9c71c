"""Comparisons, what they choose, and orders: rounding may decide them, and then they are uncertain."""

from collections.abc import Callable
from typing import Any

import numpy as np

from shardproof.properties.engines.simulate.elementwise import aligned
from shardproof.properties.engines.simulate.env import Env, common_lead
from shardproof.properties.engines.simulate.reductions import ranking
from shardproof.properties.engines.simulate.rules import RULES, result_dtype
from shardproof.properties.precision.wide.held import UNKNOWN, Numbers, together, value_of
from shardproof.properties.precision.wide.table import decided, float_rule, one, wide_rule


@float_rule("eq", "ne", "lt", "le", "gt", "ge")
def comparison(env: Env, equation: Any, x: Numbers, y: Numbers) -> Any:
    """A comparison: uncertain where the operands are as close as they may be off."""
    rule = RULES[equation.primitive.name]
    x, y = aligned(env, equation, (x, y))
    value = one(rule(env, equation, x["value"], y["value"]))
    off = x["error"] + y["error"]
    if not off.any() or decided(env):
        return together(value, 0.0, np.dtype(bool))
    close = (off > 0) & ~(np.abs(x["value"] - y["value"]) > off)
    either_nan = np.isnan(x["value"]) | np.isnan(y["value"])
    return together(value, np.where(close & ~(either_nan & np.isfinite(off)), UNKNOWN, 0.0), np.dtype(bool))


@wide_rule("select_n")
def select_n(env: Env, equation: Any, which: Numbers, *cases: Numbers) -> Numbers:
    """What is chosen: where the choice is uncertain, all that may be."""
    which, *cases_ = aligned(env, equation, (which, *cases))
    result = one(RULES["select_n"](env, equation, which["value"], *cases_))
    doubtful = which["error"] != 0
    if not doubtful.any():
        return result
    value = result["value"]
    off = np.zeros(())
    for case in cases_:
        apart = np.where(case["value"] == value, 0.0, np.abs(_number(case["value"]) - _number(value)))
        off = np.maximum(off, np.where(np.isnan(apart), UNKNOWN, apart) + np.abs(case["error"]))
    if result_dtype(equation).kind in "biu":
        off = np.where(off > 0, UNKNOWN, 0.0)
    return together(value, np.where(doubtful, off, result["error"]), result_dtype(equation))


def _number(x: Numbers) -> Numbers:
    return x.astype(np.float64) if x.dtype.kind not in "fc" else x


def separated(value: Numbers, error: Numbers, axis: int) -> Numbers:
    """Whether each element of an ascending order, but the last, is certainly before all that follow it."""
    value, error = (np.flip(np.moveaxis(x, axis, -1), -1) for x in (value, error))
    lowest = np.minimum.accumulate(value - error, axis=-1)[..., :-1]
    exact = (error[..., 1:] == 0) & (np.maximum.accumulate(error, axis=-1)[..., :-1] == 0)
    return np.flip(((value + error)[..., 1:] < lowest) | exact, -1)


def _in_order(env: Env, operands: list[Numbers], order: Numbers, axis: int) -> list[Numbers]:
    return [np.take_along_axis(x, order, axis) for x in operands]


@float_rule("sort")
def sort(env: Env, equation: Any, *operands: Numbers) -> Any:
    """All operands in the order of the first ones: of a row that rounding may order otherwise nothing is claimed."""
    axis, keys = env.lead + equation.params["dimension"], equation.params["num_keys"]
    lead = common_lead(env, *operands)
    full = [np.broadcast_to(x, lead + x.shape[env.lead :]) for x in operands]
    order = ranking([value_of(x) for x in full[:keys]], axis)
    moved = _in_order(env, full, order, axis)
    sure: Any = np.ones((), bool)
    if any((x["error"] != 0).any() for x in full[:keys]) and not decided(env):
        first = moved[0]
        sure = separated(_number(first["value"]), np.abs(first["error"]), axis).all(axis=-1)
        sure = np.expand_dims(sure, axis)
    return [_doubtful(x, ~sure) for x in moved]


def _doubtful(x: Numbers, mask: Numbers) -> Numbers:
    return together(x["value"], np.where(mask, UNKNOWN, x["error"]), x["value"].dtype) if mask.any() else x


@float_rule("top_k")
def top_k(env: Env, equation: Any, x: Numbers) -> Any:
    """The largest elements and their indices: of a row whose first ones rounding may change nothing is claimed."""
    rule = RULES["top_k"]
    axis = env.lead + equation.params.get("axis", x.ndim - env.lead - 1) % (x.ndim - env.lead)
    _, indices = rule(env, equation, x["value"])
    best = np.take_along_axis(x, indices.astype(np.int64), axis)
    unsure: Numbers = np.zeros((), bool)
    if (x["error"] != 0).any() and not decided(env):
        order = np.flip(ranking([x["value"]], axis), axis)
        whole = np.take_along_axis(x, order, axis)
        sure = separated(-whole["value"], whole["error"], axis)[..., : equation.params["k"]].all(axis=-1)
        unsure = np.expand_dims(~sure, axis)
    error = np.where(np.broadcast_to(unsure, indices.shape), UNKNOWN, 0.0)
    return [_doubtful(best, unsure), together(indices, error, indices.dtype)]


def best_of(sign: int) -> Callable[..., Any]:
    """The wide rule of argmax (sign 1) or argmin (-1): uncertain where another element may be the one."""

    def run(env: Env, equation: Any, x: Numbers) -> Any:
        rule = RULES[equation.primitive.name]
        (axis,) = equation.params["axes"]
        axis = env.lead + axis
        index = one(rule(env, equation, x["value"]))
        error: Any = 0.0
        if (x["error"] != 0).any() and not decided(env):
            order = ranking([-sign * x["value"]], axis)
            whole = np.take_along_axis(x, order, axis)
            sure = separated(-sign * whole["value"], whole["error"], axis)[..., :1].all(axis=-1)
            error = np.where(sure, 0.0, UNKNOWN)
        return together(index, error, index.dtype)

    return run


float_rule("argmax")(best_of(1))
float_rule("argmin")(best_of(-1))
