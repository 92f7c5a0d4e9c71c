"""The mean of all participants' elements by their weights: a loss over tokens of which some count for more.

Both forms run inside `jax.shard_map`, over one axis or a tuple of axes in any order (`Y`). An element of weight zero
counts for nothing, even if it is NaN: neither in the mean nor in its gradient, which is zero there.
"""

import jax.numpy as jnp
from jax import lax

from shardproof.impl.arguments import AxisName, check_axes, check_kind, check_shape
from shardproof.impl.collectives import Block, all_gather_invariant, cast_varying
from shardproof.impl.dtypes import accumulator


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
    axes = _checked("weighted_mean", values, weights, axis_name)
    total, of_weights = lax.psum(_sums(cast_varying(values, axes), cast_varying(weights, axes)), axes)
    return _quotient(total, of_weights, values)


def gathered_weighted_mean(values: Block, weights: Block, axis_name: AxisName) -> Block:
    """`values [T_Y]`, `weights [T_Y]` to `[]`, typed invariant: gathers both, then takes the mean.

    Arguments and result are those of `weighted_mean`.

    Raises:
        ValueError: as `weighted_mean`.
    """
    axes = _checked("gathered_weighted_mean", values, weights, axis_name)
    whole, of_whole = (all_gather_invariant(cast_varying(x, axes), axes) for x in (values, weights))
    return _quotient(*_sums(whole, of_whole), values)


def _checked(function: str, values: Block, weights: Block, axis_name: AxisName) -> tuple[str, ...]:
    axes = check_axes(function, axis_name)
    for argument, array in (("values", values), ("weights", weights)):
        check_kind(function, argument, array, jnp.floating, "real floating-point numbers")
    check_shape(function, "weights", weights, values.shape, "that of values")
    return axes


def _sums(values: Block, weights: Block) -> tuple[Block, Block]:
    wide = accumulator(values, weights)
    factors = lax.stop_gradient(weights).astype(wide)
    # selected before anything is computed: a NaN times zero would be NaN, in the gradient as well
    kept = jnp.where(factors > 0, values.astype(wide), 0)
    return jnp.sum(kept * factors), jnp.sum(factors)


def _quotient(total: Block, of_weights: Block, values: Block) -> Block:
    return (total / jnp.where(of_weights > 0, of_weights, 1)).astype(values.dtype)
