"""Means over all participants' elements: losses over tokens of which some are padding, or count for more.

All forms run inside `jax.shard_map`, over one axis or a tuple of axes in any order (`Y`). A mask is a weight of 0 or 1:
**True where an element counts**, as in `jax.numpy.mean(where=mask)`. An element that is masked, or of weight zero,
counts for nothing, even if it is NaN: neither in the mean nor in its gradient, which is zero there.
"""

import jax.numpy as jnp
from jax import lax

from shardproof.impl.arguments import AxisName, check_axes, check_floating, check_kind, check_shape
from shardproof.impl.collectives import Block, cast_varying
from shardproof.impl.dtypes import accumulator


def masked_mean(values: Block, mask: Block, axis_name: AxisName) -> Block:
    """`values [T_Y]`, `mask [T_Y]` to `[]`, typed invariant: adds up sums and counts of all participants.

    The sum of all sums by that of all counts, and not a mean of means: participants may count different numbers of
    elements, or none. Two numbers travel, the sum in float32 or wider and the count in int32. Values are floating-point
    blocks of any shape, and the mask is bool; the mean has the dtype of the values, rounded once, and is 0 without
    elements.
    """
    axes = check_axes("masked_mean", axis_name)
    check_kind("masked_mean", "values", values, jnp.floating, "real floating-point numbers")
    check_kind("masked_mean", "mask", mask, jnp.bool_, "bool")
    check_shape("masked_mean", "mask", mask, values.shape, "that of values")
    return _mean(values, mask, axes)


def weighted_mean(values: Block, weights: Block, axis_name: AxisName) -> Block:
    """`values [T_Y]`, `weights [T_Y]` to `[]`, typed invariant: adds up weighted sums and weights of all participants.

    The sum of all weighted sums by that of all weights, and not a mean of means: the weights of one participant may add
    up to more than those of another, or to nothing. What travels are two numbers, in float32 or wider.

    As `masked_mean`, but for the weights: floating-point blocks of the shape of `values`, finite and not negative. They
    have no gradient.
    """
    axes = check_axes("weighted_mean", axis_name)
    check_floating("weighted_mean", values=values, weights=weights)
    check_shape("weighted_mean", "weights", weights, values.shape, "that of values")
    return _mean(values, weights, axes)


def _mean(values: Block, weights: Block, axes: tuple[str, ...]) -> Block:
    values, weights = cast_varying(values, axes), cast_varying(weights, axes)
    wide = accumulator(values, weights)
    # selected before anything is computed: a NaN times zero would be NaN, in the gradient as well
    kept = jnp.where(weights != 0, values.astype(wide), 0)
    if weights.dtype == jnp.bool_:  # counted, since float32 counts no further than 2**24
        sums = jnp.sum(kept), jnp.sum(weights, dtype=jnp.int32)
    else:
        factors = lax.stop_gradient(weights).astype(wide)
        sums = jnp.sum(kept * factors), jnp.sum(factors)
    total, of_weights = lax.psum(sums, axes)
    return (total / jnp.where(of_weights > 0, of_weights, 1).astype(wide)).astype(values.dtype)
