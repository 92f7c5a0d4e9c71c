"""The mean over the elements that count, of all participants: a loss over tokens of which some are padding.

Both forms run inside `jax.shard_map`, over one axis or a tuple of axes in any order (`Y`). **`mask` is True where an
element counts**, as in `jax.numpy.mean(where=mask)`. A masked element, where it is False, counts for nothing, even if
it is NaN: neither in the mean nor in its gradient, which is zero there.
"""

import jax.numpy as jnp
from jax import lax

from shardproof.impl.arguments import AxisName, check_axes, check_kind, check_shape
from shardproof.impl.collectives import Block, all_gather_invariant, cast_varying
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
    axes = _checked("masked_mean", values, mask, axis_name)
    values, mask = cast_varying(values, axes), cast_varying(mask, axes)
    total, count = lax.psum(_sum_and_count(values, mask), axes)
    return _quotient(total, count, values)


def gathered_masked_mean(values: Block, mask: Block, axis_name: AxisName) -> Block:
    """`values [T_Y]`, `mask [T_Y]` to `[]`, typed invariant: gathers both, then takes the mean.

    Arguments and result are those of `masked_mean`.

    Raises:
        ValueError: as `masked_mean`.
    """
    axes = _checked("gathered_masked_mean", values, mask, axis_name)
    whole, counts = (all_gather_invariant(cast_varying(x, axes), axes) for x in (values, mask))
    return _quotient(*_sum_and_count(whole, counts), values)


def _checked(function: str, values: Block, mask: Block, axis_name: AxisName) -> tuple[str, ...]:
    axes = check_axes(function, axis_name)
    check_kind(function, "values", values, jnp.floating, "real floating-point numbers")
    check_kind(function, "mask", mask, jnp.bool_, "bool")
    check_shape(function, "mask", mask, values.shape, "that of values")
    return axes


def _sum_and_count(values: Block, mask: Block) -> tuple[Block, Block]:
    # selected before anything is computed: a NaN times zero would be NaN, in the gradient as well
    kept = jnp.where(mask, values.astype(accumulator(values)), 0)
    return jnp.sum(kept), jnp.sum(mask, dtype=jnp.int32)


def _quotient(total: Block, count: Block, values: Block) -> Block:
    return (total / jnp.maximum(count, 1).astype(total.dtype)).astype(values.dtype)
