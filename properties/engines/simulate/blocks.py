"""Primitives that move, sort, reduce and multiply the elements of blocks, whose dimensions follow the leading ones.

Sums and products are accumulated wide and rounded once to the traced dtype. NaN sorts last and wins every maximum and
minimum.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import scipy.fft

from shardproof.oracles.dtypes import is_float, largest_finite
from shardproof.properties.engines.simulate.env import (
    ALLOCATES,
    Dimensions,
    Env,
    Rule,
    block_axes,
    block_rank,
    broadcast_leads,
    common_lead,
    result_dtype,
    result_shape,
    rule,
)
from shardproof.properties.engines.simulate.interpreter import evaluate, held_as


@rule("reshape", "squeeze")
def reshape(env: Env, equation: Any, x: np.ndarray, *_: np.ndarray) -> np.ndarray:
    """The same elements in row-major order, in another shape."""
    if equation.primitive.name == "reshape" and equation.params["dimensions"] is not None:
        x = x.transpose(*range(env.lead), *block_axes(env, equation.params["dimensions"]))
    return x.reshape(result_shape(env, equation, x))


@rule("broadcast_in_dim")
def broadcast_in_dim(env: Env, equation: Any, x: np.ndarray, *_: np.ndarray) -> np.ndarray:
    """Dimension i of the operand becomes dimension `broadcast_dimensions[i]`; the others are repeated."""
    shape = result_shape(env, equation, x)
    own = list(shape[: env.lead]) + [1] * (len(shape) - env.lead)
    for size, dimension in zip(x.shape[env.lead :], equation.params["broadcast_dimensions"], strict=True):
        own[env.lead + dimension] = size
    return np.broadcast_to(x.reshape(own), shape)


AS_IN_NUMPY: dict[str, Rule] = {
    "transpose": lambda env, e, x: x.transpose(*range(env.lead), *block_axes(env, e.params["permutation"])),
    "concatenate": lambda env, e, *xs: np.concatenate(broadcast_leads(env, xs), axis=env.lead + e.params["dimension"]),
    "stack": lambda env, e, *xs: np.stack(broadcast_leads(env, xs), axis=env.lead + e.params["axis"]),
    "unstack": lambda env, e, x: list(map(np.asarray, np.moveaxis(x, env.lead + e.params["axis"], 0))),
    "split": lambda env, e, x: np.split(x, np.cumsum(e.params["sizes"])[:-1], axis=env.lead + e.params["axis"]),
    "tile": lambda env, e, x: np.tile(x, (1,) * env.lead + tuple(e.params["reps"])),
    "rev": lambda env, e, x: np.flip(x, block_axes(env, e.params["dimensions"])),
}
"""Functions of NumPy on the block's dimensions."""

for _name, _rule in AS_IN_NUMPY.items():
    rule(_name)(_rule)


@rule("slice")
def slice_rule(env: Env, equation: Any, x: np.ndarray) -> np.ndarray:
    """From start to limit in strides, along every dimension."""
    starts, limits = equation.params["start_indices"], equation.params["limit_indices"]
    strides = equation.params["strides"] or (1,) * len(starts)
    inside: tuple[Any, ...] = (..., *map(slice, starts, limits, strides))
    return x[inside]


@rule("pad")
def pad(env: Env, equation: Any, x: np.ndarray, value: np.ndarray) -> np.ndarray:
    """`value` around and between the elements; negative padding removes elements."""
    return pad_block(env, x, value, [tuple(map(int, one)) for one in equation.params["padding_config"]])


def pad_block(env: Env, x: np.ndarray, value: np.ndarray, config: Sequence[tuple[int, ...]]) -> np.ndarray:
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
    along = (1,) * (env.lead + dimension) + (-1,) + (1,) * (len(shape) - dimension - 1)
    return np.broadcast_to(counts.reshape(along), (1,) * env.lead + shape)


@rule(*ALLOCATES)
def empty(env: Env, equation: Any, *_: np.ndarray) -> np.ndarray:
    """Unwritten memory: NaN, the lowest integer, False; with the other choice the largest, True."""
    if env.found is not None:
        env.found["contents", id(equation)] = equation
    aval, other = equation.outvars[0].aval, env.other == "contents"
    dtype = held_as(aval)
    unwritten = np.array(largest_finite(dtype) if other else np.nan) if is_float(dtype) else extreme(dtype, other)
    return np.broadcast_to(unwritten.astype(dtype), (1,) * env.lead + tuple(aval.shape))


@rule("copy", "stop_gradient", "name", "optimization_barrier", "sharding_constraint", "reshard", "device_put")
@rule("pvary", "preduced", "vary_unreduced_cast", "reduced_vary_cast", "random_clone")
@rule("vary_unreduced_cast_p", "reduced_vary_cast_p")  # their names in JAX 0.10
def identity(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """The operands: layouts, memories and types along mesh axes do not change values."""
    return list(operands)


@functools.cache
def extreme(dtype: np.dtype, largest: bool) -> np.ndarray:
    """The largest or smallest number of a dtype: the identity of minimum or maximum."""
    if dtype == bool or dtype.names:
        return np.full((), largest, dtype)
    if is_float(dtype):
        value = np.array(np.inf if largest else -np.inf).astype(dtype)
        finite = ml_dtypes.finfo(dtype)
        return value if np.isinf(value) else np.array(finite.max if largest else finite.min, dtype)
    limits = ml_dtypes.iinfo(dtype)
    return np.array(int(limits.max if largest else limits.min)).astype(dtype)


def reduction(ufunc: np.ufunc) -> Rule:
    """The rule that reduces wide numbers and rounds the result."""

    def run(env: Env, equation: Any, x: np.ndarray) -> np.ndarray:
        exact = None if x.dtype == bool else env.exact(x.dtype)
        axes = block_axes(env, equation.params["axes"])
        return np.asarray(ufunc.reduce(x, axis=axes, dtype=exact)).astype(result_dtype(equation))

    return run


def extremum(ufunc: np.ufunc, largest: bool) -> Rule:
    """The rule of the maximum or minimum, with its identity for empty dimensions."""

    def run(env: Env, equation: Any, x: np.ndarray) -> np.ndarray:
        exact, axes = as_comparable(x), block_axes(env, equation.params["axes"])
        start = extreme(x.dtype, largest).astype(exact.dtype)
        return np.asarray(ufunc.reduce(exact, axis=axes, initial=start)).astype(x.dtype)

    return run


rule("reduce_sum")(reduction(np.add))
rule("reduce_prod")(reduction(np.multiply))
rule("reduce_and")(reduction(np.bitwise_and))
rule("reduce_or")(reduction(np.bitwise_or))
rule("reduce_xor")(reduction(np.bitwise_xor))
rule("reduce_max")(extremum(np.maximum, largest=False))
rule("reduce_min")(extremum(np.minimum, largest=True))


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
    """Folds arrays in row-major order with a function of the program's."""
    count = len(operands) // 2
    dimensions = equation.params["dimensions"]
    jaxpr = equation.params["jaxpr"]
    rank = operands[0].ndim
    order = [d for d in range(rank) if d - env.lead not in dimensions] + list(block_axes(env, dimensions))
    rest = rank - len(dimensions)
    arrays = [x.transpose(order).reshape(*(x.shape[d] for d in order[:rest]), -1) for x in operands[:count]]
    return fold(env, jaxpr, arrays, operands[count:])


def fold(env: Env, jaxpr: Any, arrays: Sequence[np.ndarray], starts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Folds arrays `[*lead, *rest, n]` along their last dimension, from `starts` `[*lead]`."""
    rest = arrays[0].ndim - 1 - env.lead
    state = [x.reshape(x.shape + (1,) * rest) for x in starts]
    state = [np.broadcast_to(s, np.broadcast_shapes(s.shape, x.shape[:-1])) for s, x in zip(state, arrays, strict=True)]
    for position in range(arrays[0].shape[-1]):
        elements = [x[..., position] for x in arrays]
        state = evaluate(env.mapped(rest), jaxpr, [*state, *elements])
    return state


def as_comparable(x: np.ndarray) -> np.ndarray:
    """The same numbers in a dtype that NumPy sorts, NaN last; `isbuiltin` is wrong for `float8_e5m2`."""
    return x if x.dtype.kind in "biufc" and x.dtype.isbuiltin == 1 else x.astype(np.float32)


def ranking(keys: Sequence[np.ndarray], axis: int) -> np.ndarray:
    """The indices of a stable sort by the first key, ties by the next."""
    return np.lexsort([as_comparable(key) for key in reversed(keys)], axis=axis)


@rule("sort")
def sort(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """All operands in the order of the first `num_keys`, along a dimension."""
    axis = env.lead + equation.params["dimension"]
    full = broadcast_leads(env, operands)
    order = ranking(full[: equation.params["num_keys"]], axis)
    return [np.take_along_axis(x, order, axis) for x in full]


@rule("top_k")
def top_k(env: Env, equation: Any, x: np.ndarray) -> list[np.ndarray]:
    """The k largest elements in descending order and their indices; equal ones in their order."""
    axis = env.lead + equation.params.get("axis", x.ndim - env.lead - 1) % (x.ndim - env.lead)
    backwards = np.flip(ranking([np.flip(x, axis)], axis), axis)
    order = np.moveaxis(x.shape[axis] - 1 - backwards, axis, -1)[..., : equation.params["k"]]
    order = np.moveaxis(order, -1, axis)
    return [np.take_along_axis(x, order, axis), order.astype(result_dtype(equation, 1))]


def first_extreme(function: Callable[..., Any]) -> Rule:
    """The rule of the index of the first largest, or smallest, element."""

    def run(env: Env, equation: Any, x: np.ndarray) -> np.ndarray:
        (axis,) = equation.params["axes"]
        return np.asarray(function(as_comparable(x), axis=env.lead + axis)).astype(result_dtype(equation))

    return run


rule("argmax")(first_extreme(np.argmax))
rule("argmin")(first_extreme(np.argmin))


Contraction = tuple[tuple[Dimensions, Dimensions], tuple[Dimensions, Dimensions]]


def merge_dimensions(x: np.ndarray, lead: int, *groups: Dimensions) -> np.ndarray:
    """`x` with the block's dimensions ordered by groups, and each group made one dimension."""
    order = [int(d) + lead for group in groups for d in group]
    sizes = [math.prod(x.shape[d + lead] for d in group) for group in groups]
    return x.transpose(*range(lead), *order).reshape((*x.shape[:lead], *sizes))


def dot(env: Env, lhs: np.ndarray, rhs: np.ndarray, dimensions: Contraction) -> np.ndarray:
    """The sum of products over the contracting dimensions: `[*lead, *batch, *lhs free, *rhs free]`, wide."""
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimensions
    lhs_free = [d for d in range(block_rank(env, lhs)) if d not in (*lhs_contract, *lhs_batch)]
    rhs_free = [d for d in range(block_rank(env, rhs)) if d not in (*rhs_contract, *rhs_batch)]
    block = [lhs.shape[env.lead + d] for d in (*lhs_batch, *lhs_free)] + [rhs.shape[env.lead + d] for d in rhs_free]
    dtype = np.result_type(env.exact(lhs.dtype), env.exact(rhs.dtype))
    left = merge_dimensions(lhs, env.lead, lhs_batch, lhs_free, lhs_contract).astype(dtype, copy=False)
    right = merge_dimensions(rhs, env.lead, rhs_batch, rhs_contract, rhs_free).astype(dtype, copy=False)
    return np.asarray(np.matmul(left, right)).reshape((*common_lead(env, lhs, rhs), *block))


@rule("dot_general")
def dot_general(env: Env, equation: Any, lhs: np.ndarray, rhs: np.ndarray, *_: np.ndarray) -> np.ndarray:
    """The general dot product, with batch dimensions."""
    result = dot(env, lhs, rhs, equation.params["dimension_numbers"])
    return (result != 0 if result_dtype(equation) == bool else result).astype(result_dtype(equation))


@rule("ragged_dot_general")
def ragged_dot_general(
    env: Env, equation: Any, lhs: np.ndarray, rhs: np.ndarray, sizes: np.ndarray, *_: np.ndarray
) -> np.ndarray:
    """A dot product in which the ragged dimension is cut into groups of the given sizes.

    If it is free, every group is multiplied by its own part of `rhs`; if it is contracted, every group gives a part of
    the result; a batch dimension needs no groups. Rows past the last group count as zero.
    """
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = numbers.dot_dimension_numbers
    (ragged,) = numbers.lhs_ragged_dimensions
    participants = in_group(env, lhs, sizes, ragged, lhs_batch)
    by_group = np.expand_dims(lhs, env.lead) * participants.astype(lhs.dtype)  # [*lead, group, *lhs]

    def after(dimensions: Dimensions) -> list[int]:
        return [int(d) + 1 for d in dimensions]

    if ragged in lhs_batch:
        masked = by_group.sum(axis=env.lead).astype(lhs.dtype)
        result = dot(env, masked, rhs, numbers.dot_dimension_numbers)
    elif ragged in lhs_contract:
        result = dot(env, by_group, rhs, ((after(lhs_contract), rhs_contract), (after(lhs_batch), rhs_batch)))
        result = np.moveaxis(result, env.lead + len(lhs_batch), env.lead)
    else:
        (group,) = numbers.rhs_group_dimensions
        contract = ([0, *after(lhs_contract)], [group, *rhs_contract])
        result = dot(env, by_group, rhs, (contract, (after(lhs_batch), rhs_batch)))
    return result.astype(result_dtype(equation))


def in_group(env: Env, lhs: np.ndarray, sizes: np.ndarray, ragged: int, batch: Dimensions) -> np.ndarray:
    """A mask of the positions of the ragged dimension in each group: bool `[*lead, group, *(1 or size)]`.

    `sizes` is `[group]`, or has one dimension before it for each batch dimension of `lhs` (and, where
    a dimension before the ragged one is contracted, for that too).
    """
    ends = np.cumsum(sizes.astype(np.int64), axis=-1)
    starts = ends - sizes
    position = np.arange(lhs.shape[env.lead + ragged])
    inside = (position >= starts[..., None]) & (position < ends[..., None])  # [*lead, *outer, group, position]
    outer = inside.ndim - env.lead - 2
    inside = np.moveaxis(inside, env.lead + outer, env.lead)  # [*lead, group, *outer, position]
    rank = block_rank(env, lhs)
    shape = [1] * rank
    before = ([*batch] + [d for d in range(ragged) if d not in batch])[:outer] if outer else []
    for dimension in (*before, ragged):
        shape[dimension] = lhs.shape[env.lead + dimension]
    return inside.reshape(*inside.shape[: env.lead + 1], *shape)


@rule("fft")
def fft(env: Env, equation: Any, x: np.ndarray) -> np.ndarray:
    """A Fourier transform over the last dimensions, forwards or back, of complex or real numbers."""
    lengths, name = tuple(equation.params["fft_lengths"]), equation.params["fft_type"].name
    shape = result_shape(env, equation, x)
    if 0 in shape or 0 in x.shape:
        return np.zeros(shape, result_dtype(equation))
    transform = getattr(scipy.fft, f"{name.lower()}n")
    axes = range(-len(lengths), 0)
    return np.asarray(transform(x.astype(env.exact(x.dtype)), s=lengths, axes=axes)).astype(result_dtype(equation))
