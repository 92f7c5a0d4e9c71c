"""Means over all participants' elements: losses over tokens of which some are padding, or count for more.

All forms run inside `jax.shard_map`, over one axis or a tuple of axes in any order (`Y`). A mask is a weight of 0 or 1:
**True where an element counts**, as in `jax.numpy.mean(where=mask)`. An element that is masked, or of weight zero,
counts for nothing, even if it is NaN: neither in the mean nor in its gradient, which is zero there.
"""

import jax.numpy as jnp
from jax import lax

from shardproof.impl.arguments import AxisName, check_axes, check_kind, check_shape
from shardproof.impl.collectives import Block, cast_varying
from shardproof.impl.dtypes import accumulator


def masked_mean(values: Block, mask: Block, axis_name: AxisName) -> Block:
    """`values [T_Y]`, `mask [T_Y]` to `[]`, typed invariant: adds up sums and counts of all participants.

    The sum of all sums by that of all counts, and not a mean of means: participants may count different numbers of
    elements, or none. What travels are two numbers, the sum in float32 or wider and the count in int32.

    Arguments:
        values: floating-point blocks of any shape, all counted; 16-bit floats are added up in float32.
        mask: bool, of the shape of `values`; True where an element counts.
        axis_name: the axis or axis tuple over which both are sharded.

    Returns:
        A scalar of the dtype of `values`, rounded once; 0 where everything is masked.

    Raises:
        ValueError: for an unknown axis, values that are not floating, or a mask that is not bool or of another shape.
    """
    return _summed(values, mask, _checked("masked_mean", values, mask, axis_name, masked=True))


def weighted_mean(values: Block, weights: Block, axis_name: AxisName) -> Block:
    """`values [T_Y]`, `weights [T_Y]` to `[]`, typed invariant: adds up weighted sums and weights of all participants.

    The sum of all weighted sums by that of all weights, and not a mean of means: the weights of one participant may add
    up to more than those of another, or to nothing. What travels are two numbers, in float32 or wider.

    Arguments:
        values: floating-point blocks of any shape, all counted; 16-bit floats are added up in float32.
        weights: floating-point blocks of the shape of `values`, finite and not negative; they have no gradient.
        axis_name: the axis or axis tuple over which both are sharded.

    Returns:
        A scalar of the dtype of `values`, rounded once; 0 where all weights are.

    Raises:
        ValueError: for an unknown axis, or values or weights that are not floating, or of different shapes.
    """
    return _summed(values, weights, _checked("weighted_mean", values, weights, axis_name, masked=False))


def _checked(function: str, values: Block, weights: Block, axis_name: AxisName, *, masked: bool) -> tuple[str, ...]:
    axes, argument = check_axes(function, axis_name), "mask" if masked else "weights"
    check_kind(function, "values", values, jnp.floating, "real floating-point numbers")
    if masked:
        check_kind(function, argument, weights, jnp.bool_, "bool")
    else:
        check_kind(function, argument, weights, jnp.floating, "real floating-point numbers")
    check_shape(function, argument, weights, values.shape, "that of values")
    return axes


def _summed(values: Block, weights: Block, axes: tuple[str, ...]) -> Block:
    total, of_weights = lax.psum(_sums(cast_varying(values, axes), cast_varying(weights, axes)), axes)
    return _quotient(total, of_weights, values)


def _sums(values: Block, weights: Block) -> tuple[Block, Block]:
    """The weighted sum and that of the weights; a mask is counted, since float32 counts no further than 2**24."""
    wide = accumulator(values, weights)
    # selected before anything is computed: a NaN times zero would be NaN, in the gradient as well
    kept = jnp.where(weights != 0, values.astype(wide), 0)
    if weights.dtype == jnp.bool_:
        return jnp.sum(kept), jnp.sum(weights, dtype=jnp.int32)
    factors = lax.stop_gradient(weights).astype(wide)
    return jnp.sum(kept * factors), jnp.sum(factors)


def _quotient(total: Block, of_weights: Block, values: Block) -> Block:
    return (total / jnp.where(of_weights > 0, of_weights, 1).astype(total.dtype)).astype(values.dtype)
