"""Planted bugs of the mean of what a mask counts."""

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import means
from shardproof.impl.collectives import cast_varying
from shardproof.properties.mutants.axes import AxisName, names, widened
from shardproof.properties.mutants.catalogue import mutant


def _sums(values: Array, mask: Array, axis_name: AxisName) -> tuple[Array, Array]:
    """The sum of this participant's values that count, and their number, both wide."""
    wide, counts = (cast_varying(widened(x), names(axis_name)) for x in (values, mask))
    return jnp.sum(jnp.where(counts > 0, wide, 0)), jnp.sum(counts)


@mutant("masked_mean", smallest=(2,))
def mean_of_means(values: Array, mask: Array, axis_name: AxisName) -> Array:
    """Takes the mean of the participants' own means, which count different numbers of elements."""
    total, count = _sums(values, mask, axis_name)
    return lax.pmean(total / jnp.where(count > 0, count, 1), names(axis_name)).astype(values.dtype)


@mutant("masked_mean", smallest=(1,))
def mean_of_nothing(values: Array, mask: Array, axis_name: AxisName) -> Array:
    """Divides by zero where no element counts."""
    total, count = lax.psum(_sums(values, mask, axis_name), names(axis_name))
    return (total / count).astype(values.dtype)


@mutant("masked_mean", smallest=(1,))
def mean_with_a_masked_nan(values: Array, mask: Array, axis_name: AxisName) -> Array:
    """Multiplies by the mask, so that a masked NaN or infinity makes the mean NaN."""
    _, count = _sums(values, mask, axis_name)
    total, count = lax.psum((jnp.sum(widened(values) * mask), count), names(axis_name))
    return (total / jnp.where(count > 0, count, 1)).astype(values.dtype)


@mutant("masked_mean", smallest=(1,), law="gradient")
def mean_whose_gradient_is_nan(values: Array, mask: Array, axis_name: AxisName) -> Array:
    """Selects after a function of what is masked, so that a masked NaN is in the gradient, and nowhere else."""
    kept = jnp.where(mask, values + jnp.tanh(jnp.where(mask, 0, values)), 0)
    return means.masked_mean(kept, mask, axis_name)


@mutant("masked_mean", smallest=(1,), claims=("any_rank",))
def mean_of_rows(values: Array, mask: Array, axis_name: AxisName) -> Array:
    """Takes the mean of the means of rows, whatever these count: right of one row."""
    kept = jnp.where(mask, widened(values), 0)
    parts = (cast_varying(x.sum(axis=-1), names(axis_name)) for x in (kept, mask.astype(kept.dtype)))
    total, count = (lax.psum(x, names(axis_name)) for x in parts)
    return (total / jnp.where(count > 0, count, 1)).mean().astype(values.dtype)
