"""Primitives that only move elements: the block's dimensions follow the leading ones."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardproof.properties.engines.simulate.env import Env, common_lead, spread
from shardproof.properties.engines.simulate.plans import held_as
from shardproof.properties.engines.simulate.rules import block_rank, result_dtype, rule, shifted
from shardproof.properties.engines.simulate.undetermined import ALLOCATES, contents


def traced_shape(env: Env, equation: Any, lead: tuple[int, ...], index: int = 0) -> tuple[int, ...]:
    """The shape of a result over the given leading dimensions."""
    return lead + tuple(equation.outvars[index].aval.shape)


@rule("reshape")
def reshape(env: Env, equation: Any, x: np.ndarray, *_: np.ndarray) -> np.ndarray:
    """The same elements in row-major order, in another shape."""
    if equation.params["dimensions"] is not None:
        x = x.transpose(*range(env.lead), *shifted(env, equation.params["dimensions"]))
    return x.reshape(traced_shape(env, equation, x.shape[: env.lead]))


@rule("squeeze")
def squeeze(env: Env, equation: Any, x: np.ndarray) -> np.ndarray:
    """Dimensions of size 1 go."""
    return x.reshape(traced_shape(env, equation, x.shape[: env.lead]))


@rule("transpose")
def transpose(env: Env, equation: Any, x: np.ndarray) -> np.ndarray:
    """Dimension i of the result is dimension `permutation[i]` of the operand."""
    return x.transpose(*range(env.lead), *shifted(env, equation.params["permutation"]))


@rule("broadcast_in_dim")
def broadcast_in_dim(env: Env, equation: Any, x: np.ndarray, *_: np.ndarray) -> np.ndarray:
    """Dimension i of the operand becomes dimension `broadcast_dimensions[i]`; all else is repetition."""
    shape = traced_shape(env, equation, x.shape[: env.lead])
    placed = list(shape[: env.lead]) + [1] * (len(shape) - env.lead)
    for size, dimension in zip(x.shape[env.lead :], equation.params["broadcast_dimensions"], strict=True):
        placed[env.lead + dimension] = size
    return np.broadcast_to(x.reshape(placed), shape)


@rule("concatenate")
def concatenate(env: Env, equation: Any, *operands: np.ndarray) -> np.ndarray:
    """The operands, one after the other along a dimension."""
    lead = common_lead(env, *operands)
    parts = [spread(env, lead, x) for x in operands]
    return np.concatenate(parts, axis=env.lead + equation.params["dimension"])


@rule("stack")
def stack(env: Env, equation: Any, *operands: np.ndarray) -> np.ndarray:
    """The operands along a new dimension."""
    lead = common_lead(env, *operands)
    parts = [spread(env, lead, x) for x in operands]
    return np.stack(parts, axis=env.lead + equation.params["axis"])


@rule("unstack")
def unstack(env: Env, equation: Any, x: np.ndarray) -> list[np.ndarray]:
    """The slices along a dimension, which goes."""
    return [np.asarray(part) for part in np.moveaxis(x, env.lead + equation.params["axis"], 0)]


@rule("split")
def split(env: Env, equation: Any, x: np.ndarray) -> list[np.ndarray]:
    """The consecutive pieces of the given sizes along a dimension."""
    ends = np.cumsum(equation.params["sizes"])[:-1]
    return np.split(x, ends, axis=env.lead + equation.params["axis"])


@rule("tile")
def tile(env: Env, equation: Any, x: np.ndarray) -> np.ndarray:
    """The block, repeated along its dimensions."""
    return np.tile(x, (1,) * env.lead + tuple(equation.params["reps"]))


@rule("rev")
def rev(env: Env, equation: Any, x: np.ndarray) -> np.ndarray:
    """The elements in reverse order along dimensions."""
    return np.flip(x, shifted(env, equation.params["dimensions"]))


@rule("slice")
def slice_rule(env: Env, equation: Any, x: np.ndarray) -> np.ndarray:
    """From start to limit in strides, along every dimension."""
    starts, limits = equation.params["start_indices"], equation.params["limit_indices"]
    strides = equation.params["strides"] or (1,) * len(starts)
    inside: tuple[Any, ...] = (..., *map(slice, starts, limits, strides))
    return x[inside]


@rule("pad")
def pad(env: Env, equation: Any, x: np.ndarray, value: np.ndarray) -> np.ndarray:
    """`value` around and between the elements; negative padding cuts off."""
    config = [(int(low), int(high), int(interior)) for low, high, interior in equation.params["padding_config"]]
    return padded(env, x, value, config)


def padded(env: Env, x: np.ndarray, value: np.ndarray, config: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """The same by the padding of every dimension: low, high and interior; `value` is `[*lead]`."""
    lead, rank = common_lead(env, x, value), block_rank(env, x)
    value = value.reshape(value.shape + (1,) * rank)
    block = x.shape[env.lead :]
    whole = [
        low + ((n - 1) * (inner + 1) + 1 if n else 0) + high
        for n, (low, high, inner) in zip(block, config, strict=True)
    ]
    result = np.broadcast_to(value, lead + tuple(whole)).copy()
    target: list[Any] = [...]
    source: list[Any] = [...]
    for n, size, (low, _, inner) in zip(block, whole, config, strict=True):
        step = inner + 1
        first = max(0, math.ceil(-low / step))
        last = min(n, (size - 1 - low) // step + 1)
        source.append(slice(first, max(first, last)))
        target.append(slice(low + first * step, low + first * step + max(0, last - first) * step, step))
    result[tuple(target)] = x[tuple(source)]
    return result


@rule("iota")
def iota(env: Env, equation: Any, *_: np.ndarray) -> np.ndarray:
    """0, 1, 2, … along a dimension."""
    shape, dimension = tuple(equation.params["shape"]), equation.params["dimension"]
    counts = np.arange(shape[dimension]).astype(result_dtype(equation))
    placed = (1,) * (env.lead + dimension) + (-1,) + (1,) * (len(shape) - dimension - 1)
    return np.broadcast_to(counts.reshape(placed), (1,) * env.lead + shape)


@rule(*ALLOCATES)
def empty(env: Env, equation: Any, *_: np.ndarray) -> np.ndarray:
    """Memory that nothing was written to."""
    if env.found is not None:
        env.found["contents", id(equation)] = equation
    unwritten = contents(held_as(equation.outvars[0].aval), env.other == "contents")
    return np.broadcast_to(unwritten, traced_shape(env, equation, (1,) * env.lead))


@rule("copy", "stop_gradient", "name", "optimization_barrier", "sharding_constraint", "reshard", "device_put")
def identity(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """The operands: where and how they are held does not change what they are."""
    return list(operands)
