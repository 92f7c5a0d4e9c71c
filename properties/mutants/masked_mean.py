"""Planted bugs of masked_mean."""

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import masked_mean
from shardproof.impl.collectives import cast_varying
from shardproof.impl.dtypes import accumulator
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.catalogue import formula_of, mutant


@mutant("masked_mean", smallest=(2,))
def mean_of_means(values: Array, mask: Array, axis_name: AxisName) -> Array:
    """Takes the mean of the participants' own means, which count different numbers of elements."""
    kept = jnp.where(mask, values.astype(jnp.promote_types(values.dtype, jnp.float32)), 0)
    own = jnp.sum(kept) / jnp.maximum(jnp.sum(mask), 1).astype(kept.dtype)
    return lax.pmean(cast_varying(own, names(axis_name)), axis_name).astype(values.dtype)


@mutant("masked_mean", smallest=(1,))
def mean_over_all_elements(values: Array, mask: Array, axis_name: AxisName) -> Array:
    """Divides by the number of all elements, masked ones included."""
    return masked_mean.masked_mean(jnp.where(mask, values, 0), jnp.ones_like(mask), axis_name)


@mutant("masked_mean", smallest=(1,))
def mean_of_the_masked(values: Array, mask: Array, axis_name: AxisName) -> Array:
    """Counts the elements where the mask is False."""
    return masked_mean.masked_mean(values, ~mask, axis_name)


@mutant("masked_mean", smallest=(1,))
def mean_with_a_masked_nan(values: Array, mask: Array, axis_name: AxisName) -> Array:
    """Multiplies by the mask, so that a masked NaN or infinity makes the mean NaN."""
    axes = names(axis_name)
    kept = values.astype(jnp.promote_types(values.dtype, jnp.float32)) * mask
    total, count = lax.psum(cast_varying((jnp.sum(kept), jnp.sum(mask)), axes), axes)
    return (total / jnp.maximum(count, 1)).astype(values.dtype)


@mutant("masked_mean", smallest=(1,))
def mean_of_nothing(values: Array, mask: Array, axis_name: AxisName) -> Array:
    """Divides by zero where everything is masked."""
    mean = masked_mean.masked_mean(values, mask, axis_name)
    count = lax.psum(cast_varying(jnp.sum(mask), names(axis_name)), axis_name)
    return jnp.where(count == 0, jnp.asarray(jnp.nan, mean.dtype), mean)


@mutant("masked_mean", smallest=(1,), law="gradient")
def mean_whose_gradient_is_nan(values: Array, mask: Array, axis_name: AxisName) -> Array:
    """Selects after a function of what is masked, so that a masked NaN is in the gradient, and nowhere else."""
    kept = jnp.where(mask, values + jnp.tanh(jnp.where(mask, 0, values)), 0)
    return masked_mean.masked_mean(kept, mask, axis_name)


@mutant("masked_mean", smallest=(2,))
def mean_of_rounded_sums(values: Array, mask: Array, axis_name: AxisName) -> Array:
    """Rounds every participant's sum to the dtype of the values before it is sent."""
    axes = names(axis_name)
    kept = jnp.where(mask, values.astype(jnp.promote_types(values.dtype, jnp.float32)), 0)
    total = lax.psum(cast_varying(jnp.sum(kept).astype(values.dtype).astype(kept.dtype), axes), axes)
    count = lax.psum(cast_varying(jnp.sum(mask), axes), axes)
    return (total / jnp.maximum(count, 1)).astype(values.dtype)


@mutant("masked_mean", law="communication", smallest=(1,), communication=formula_of("masked_mean", "sums"))
def masked_mean_of_summed_arrays(values: Array, mask: Array, axis_name: AxisName) -> Array:
    """Adds up whole arrays over the participants, and only then their elements."""
    axes = names(axis_name)
    values, mask = cast_varying((values, mask), axes)
    kept = jnp.where(mask, values.astype(accumulator(values)), 0)
    total, count = jnp.sum(lax.psum(kept, axes)), lax.psum(jnp.sum(mask, dtype=jnp.int32), axes)
    return (total / jnp.maximum(count, 1).astype(total.dtype)).astype(values.dtype)


@mutant("masked_mean", smallest=(1,), claims=("any_rank",))
def mean_of_the_means_of_rows(values: Array, mask: Array, axis_name: AxisName) -> Array:
    """Takes the mean of the means of rows, which count different numbers of elements: right of one row."""
    axes = names(axis_name)
    kept = jnp.where(mask, values.astype(jnp.promote_types(values.dtype, jnp.float32)), 0)
    total = lax.psum(cast_varying(kept.sum(axis=-1), axes), axes)
    count = lax.psum(cast_varying(mask.sum(axis=-1), axes), axes)
    return (total / jnp.maximum(count, 1)).mean().astype(values.dtype)


@mutant("masked_mean", smallest=(2,))
def mean_by_the_own_number(values: Array, mask: Array, axis_name: AxisName) -> Array:
    """Divides the sum over all participants by how many elements count here."""
    axes = names(axis_name)
    kept = jnp.where(mask, values.astype(jnp.promote_types(values.dtype, jnp.float32)), 0)
    total = lax.psum(cast_varying(jnp.sum(kept), axes), axes)
    return (total / jnp.maximum(cast_varying(jnp.sum(mask), axes), 1)).astype(values.dtype)
