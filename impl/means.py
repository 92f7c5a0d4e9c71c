"""Means over all participants' elements: losses over tokens of which some are padding."""

import jax.numpy as jnp
from jax import lax

from shardproof.impl.arguments import AxisName, check_axes, check_kind, check_shape
from shardproof.impl.collectives import Block, accumulator, cast_varying


def masked_mean(values: Block, mask: Block, axis_name: AxisName) -> Block:
    """`values [T_Y]`, `mask [T_Y]` to `[]`, typed invariant: adds up sums and counts of all participants.

    The mask is **True where an element counts**, as in `jax.numpy.mean(where=mask)`. One that is masked counts for
    nothing, even if it is NaN: neither in the mean nor in its gradient, which is zero there.

    The sum of all sums by that of all counts, and not a mean of means: participants may count different numbers of
    elements, or none. Two numbers travel, the sum in float32 or wider and the count in int32. Values are floating-point
    blocks of any shape, and the mask is bool; the mean has the dtype of the values, rounded once, and is 0 without
    elements.
    """
    axes = check_axes("masked_mean", axis_name)
    check_kind("masked_mean", "values", values, jnp.floating, "real floating-point numbers")
    check_kind("masked_mean", "mask", mask, jnp.bool_, "bool")
    check_shape("masked_mean", "mask", mask, values.shape, "that of values")
    wide = accumulator(values)
    values, mask = cast_varying(values, axes), cast_varying(mask, axes)
    # selected before anything is computed: a NaN times zero would be NaN, in the gradient as well
    kept = jnp.where(mask, values.astype(wide), 0)
    # counted in int32, since float32 counts no further than 2**24
    total, count = lax.psum((jnp.sum(kept), jnp.sum(mask, dtype=jnp.int32)), axes)
    return (total / jnp.maximum(count, 1).astype(wide)).astype(values.dtype)
