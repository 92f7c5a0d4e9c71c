"""What moves elements, calls or repeats: the rules that there are, on elements that hold their errors."""

from typing import Any

import numpy as np

from shardproof.properties.engines.simulate.env import Env
from shardproof.properties.engines.simulate.indexing import filler
from shardproof.properties.engines.simulate.rules import RULES, result_dtype
from shardproof.properties.engines.simulate.undetermined import ALLOCATES
from shardproof.properties.precision.wide.held import (
    UNKNOWN,
    Numbers,
    certain,
    double,
    error_of,
    held,
    is_held,
    over_blocks,
    together,
    value_of,
)
from shardproof.properties.precision.wide.table import Doubled, one, wide_rule, without_errors

UNCHANGED = (
    "reshape", "squeeze", "transpose", "broadcast_in_dim", "concatenate", "stack", "unstack", "split", "tile", "rev",
    "slice", "pad", "copy", "stop_gradient", "name", "sharding_constraint", "reshard",
    "device_put", "pvary", "preduced", "vary_unreduced_cast", "reduced_vary_cast", "vary_unreduced_cast_p",
    "reduced_vary_cast_p", "all_gather", "all_gather_invariant", "all_gather_reduced", "all_to_all", "ppermute",
    "pbroadcast", "jit", "eval_jaxpr", "remat2", "custom_jvp_call", "custom_vjp_call", "custom_vmap_call", "composite",
    "linear_call", "closed_call", "call_hi_primitive", "scan", "while", "shard_map", "debug_callback", "debug_print",
    "custom_linear_solve", "reduce", "reduce_window",
)  # fmt: skip
"""What runs by its own rule: elements go where they go, whatever they are."""


def as_it_is(env: Env, equation: Any, *operands: Numbers) -> Any:
    """The rule of the primitive itself."""
    return RULES[equation.primitive.name](env, equation, *operands)


wide_rule(*UNCHANGED)(as_it_is)


def unknown_where(mask: Numbers, results: list[Numbers]) -> list[Numbers]:
    """The results, of which nothing is claimed on the devices in `mask` (`[*lead]`, broadcast)."""
    if not mask.any():
        return results
    told = []
    for x in results:
        at = over_blocks(mask, x)
        error = np.where(at, UNKNOWN, error_of(x))
        value = np.broadcast_to(value_of(x), error.shape)
        told.append(together(value, error, value.dtype) if is_held(x) else x)
    return told


def of_each_device(env: Env, *places: Numbers) -> Numbers:
    """Whether a device's own positions are unknown: bool `[*lead]`."""
    result: Any = np.zeros((1,) * env.lead, bool)
    for x in places:
        result = result | (error_of(x) != 0).any(axis=tuple(range(env.lead, x.ndim)))
    return np.asarray(result)


@wide_rule("cond")
def cond(env: Env, equation: Any, index: Numbers, *operands: Numbers) -> list[Numbers]:
    """The branch that the index names: where that is unknown, so are the results."""
    results = RULES["cond"](env, equation, value_of(index), *operands)
    return unknown_where(of_each_device(env, index), list(results))


@wide_rule("dynamic_slice")
def dynamic_slice(env: Env, equation: Any, x: Numbers, *starts: Numbers) -> list[Numbers]:
    """The window at a computed position."""
    result = as_it_is(env, equation, x, *map(value_of, starts))
    return unknown_where(of_each_device(env, *starts), [result])


@wide_rule("dynamic_update_slice")
def dynamic_update_slice(env: Env, equation: Any, x: Numbers, update: Numbers, *starts: Numbers) -> list[Numbers]:
    """The window at a computed position, replaced."""
    result = as_it_is(env, equation, x, update, *map(value_of, starts))
    return unknown_where(of_each_device(env, *starts), [result])


@wide_rule("gather")
def gather(env: Env, equation: Any, x: Numbers, indices: Numbers) -> list[Numbers]:
    """The windows at computed positions: what is read beside the operand is certain."""
    fill = equation.params["fill_value"]
    fill = filler(result_dtype(equation), fill).astype(double(result_dtype(equation)))
    at = value_of(indices)
    value = one(RULES["gather"](env, Doubled(equation, fill_value=fill), x["value"], at))
    error = one(RULES["gather"](env, Doubled(equation, fill_value=0.0), x["error"], at))
    return unknown_where(of_each_device(env, indices), [together(value, error, result_dtype(equation))])


@wide_rule("scatter")
def scatter(env: Env, equation: Any, x: Numbers, indices: Numbers, updates: Numbers, *_: Any) -> Any:
    """The windows at computed positions, replaced."""
    jaxpr = equation.params["update_jaxpr"]
    if jaxpr is not None and jaxpr.eqns:
        raise without_errors(equation, "a function that is applied where indices point")
    result = as_it_is(env, equation, x, value_of(indices), updates)
    return unknown_where(of_each_device(env, indices), [result])


@wide_rule("ragged_all_to_all")
def ragged_all_to_all(env: Env, equation: Any, *operands: Numbers) -> list[Numbers]:
    """Rows to where their senders say: sizes that are unknown could be anything, on every device."""
    unknown: Any = False
    for x in operands[2:]:
        unknown = unknown | env.anywhere(error_of(x) != 0)
    result = as_it_is(env, equation, *operands[:2], *map(value_of, operands[2:]))
    return unknown_where(unknown, [result])


@wide_rule("iota")
def iota(env: Env, equation: Any, *operands: Numbers) -> Numbers:
    """0, 1, 2, … as the program's dtype has them."""
    result = as_it_is(env, equation, *map(value_of, operands))
    return certain(result, result.dtype)


@wide_rule(*ALLOCATES)
def empty(env: Env, equation: Any, *operands: Numbers) -> Numbers:
    """Memory that nothing was written to holds anything."""
    result = as_it_is(env, equation, *operands)
    return result if held(result.dtype) == result.dtype else together(result, UNKNOWN, result.dtype)
