"""Dot products and Fourier transforms: computed in wide numbers and rounded once to the traced dtype."""

import math
from typing import Any

import numpy as np
import scipy.fft

from shardproof.properties.engines.simulate.env import Env, common_lead
from shardproof.properties.engines.simulate.rules import Dimensions, block_rank, result_dtype, rule

Contraction = tuple[tuple[Dimensions, Dimensions], tuple[Dimensions, Dimensions]]


def remaining(rank: int, *used: Dimensions) -> list[int]:
    """The dimensions that are not in any of `used`."""
    return [d for d in range(rank) if all(d not in some for some in used)]


def flattened(x: np.ndarray, lead: int, *groups: Dimensions) -> np.ndarray:
    """`x` with the block's dimensions ordered by groups, and each group made one dimension."""
    order = [int(d) + lead for group in groups for d in group]
    sizes = [math.prod(x.shape[d + lead] for d in group) for group in groups]
    return x.transpose(*range(lead), *order).reshape((*x.shape[:lead], *sizes))


def dot(env: Env, lhs: np.ndarray, rhs: np.ndarray, dimensions: Contraction) -> np.ndarray:
    """The sum of products over the contracting dimensions: `[*lead, *batch, *lhs free, *rhs free]`, wide."""
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimensions
    lhs_free = remaining(block_rank(env, lhs), lhs_contract, lhs_batch)
    rhs_free = remaining(block_rank(env, rhs), rhs_contract, rhs_batch)
    block = [lhs.shape[env.lead + d] for d in (*lhs_batch, *lhs_free)] + [rhs.shape[env.lead + d] for d in rhs_free]
    dtype = np.result_type(env.exact(lhs.dtype), env.exact(rhs.dtype))
    left = flattened(lhs, env.lead, lhs_batch, lhs_free, lhs_contract).astype(dtype, copy=False)
    right = flattened(rhs, env.lead, rhs_batch, rhs_contract, rhs_free).astype(dtype, copy=False)
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

    If it is free, every group meets its own part of `rhs`; if it is contracted, every group gives a
    part of the result; if it is a batch dimension, there is nothing to tell apart. What lies past the
    last group counts as zero.
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
    """Whether each position of the ragged dimension is in each group: bool `[*lead, group, *(1 or size)]`.

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
    placed = [1] * rank
    before = ([*batch] + [d for d in range(ragged) if d not in batch])[:outer] if outer else []
    for dimension in (*before, ragged):
        placed[dimension] = lhs.shape[env.lead + dimension]
    return inside.reshape(*inside.shape[: env.lead + 1], *placed)


@rule("fft")
def fft(env: Env, equation: Any, x: np.ndarray) -> np.ndarray:
    """A Fourier transform over the last dimensions, forwards or back, of complex or real numbers."""
    lengths, name = tuple(equation.params["fft_lengths"]), equation.params["fft_type"].name
    shape = x.shape[: env.lead] + tuple(equation.outvars[0].aval.shape)
    if 0 in shape or 0 in x.shape:
        return np.zeros(shape, result_dtype(equation))
    transform = getattr(scipy.fft, f"{name.lower()}n")
    axes = range(-len(lengths), 0)
    return np.asarray(transform(x.astype(env.exact(x.dtype)), s=lengths, axes=axes)).astype(result_dtype(equation))
