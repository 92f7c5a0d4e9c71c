"""Planted bugs of means by weights, and by masks, which are weights of 0 and 1."""

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import means
from shardproof.impl.collectives import cast_varying
from shardproof.properties.mutants.axes import AxisName, names, widened
from shardproof.properties.mutants.catalogue import mutant


def _parts(values: Array, weights: Array, axis_name: AxisName) -> tuple[Array, Array]:
    """The values that count, and the weights, both wide."""
    wide, factors = (cast_varying(widened(x), names(axis_name)) for x in (values, weights))
    return jnp.where(factors > 0, wide, 0), lax.stop_gradient(factors)


def _divided(total: Array, by: Array, values: Array) -> Array:
    return (total / jnp.where(by > 0, by, 1)).astype(values.dtype)


def _quotient(sums: tuple[Array, Array], values: Array) -> Array:
    return _divided(*sums, values)


@mutant("weighted_mean", smallest=(1,))
def weighted_mean_with_a_nan_of_no_weight(values: Array, weights: Array, axis_name: AxisName) -> Array:
    """Multiplies by a weight of zero, so that a NaN that has it makes the mean NaN."""
    _, factors = _parts(values, weights, axis_name)
    return _quotient(lax.psum((jnp.sum(widened(values) * factors), jnp.sum(factors)), names(axis_name)), values)


@mutant("weighted_mean", smallest=(1,))
def weighted_mean_of_nothing(values: Array, weights: Array, axis_name: AxisName) -> Array:
    """Divides by zero where no element has a weight."""
    kept, factors = _parts(values, weights, axis_name)
    total, by = lax.psum((jnp.sum(kept * factors), jnp.sum(factors)), names(axis_name))
    return (total / by).astype(values.dtype)


@mutant("weighted_mean", smallest=(1,), law="gradient")
def weighted_mean_whose_gradient_is_even(values: Array, weights: Array, axis_name: AxisName) -> Array:
    """Has the gradient of a mean in which all elements with a weight count equally."""
    kept, factors = _parts(values, weights, axis_name)
    even = _quotient(lax.psum((jnp.sum(kept), jnp.sum(factors)), names(axis_name)), kept)
    right = lax.stop_gradient(means.weighted_mean(values, weights, axis_name))
    return right + (even - lax.stop_gradient(even)).astype(values.dtype)


@mutant("weighted_mean", smallest=(1,), claims=("any_rank",))
def weighted_mean_of_rows(values: Array, weights: Array, axis_name: AxisName) -> Array:
    """Takes the mean of the weighted means of rows, whatever these weigh together: right of one row."""
    axes, factors = names(axis_name), widened(weights)
    products = jnp.where(factors > 0, values, 0).astype(factors.dtype) * factors
    total, weight = (lax.psum(cast_varying(x.sum(axis=-1), axes), axes) for x in (products, factors))
    return jnp.where(weight > 0, total / jnp.where(weight > 0, weight, 1), 0).mean().astype(values.dtype)


@mutant("masked_mean", smallest=(2,))
def mean_of_means(values: Array, mask: Array, axis_name: AxisName) -> Array:
    """Takes the mean of the participants' own means, which count different numbers of elements."""
    kept, factors = _parts(values, mask, axis_name)
    return lax.pmean(_divided(jnp.sum(kept), jnp.sum(factors), kept), names(axis_name)).astype(values.dtype)


@mutant("masked_mean", smallest=(1,))
def mean_with_a_masked_nan(values: Array, mask: Array, axis_name: AxisName) -> Array:
    """Multiplies by the mask, so that a masked NaN or infinity makes the mean NaN."""
    return weighted_mean_with_a_nan_of_no_weight(values, mask, axis_name)


@mutant("masked_mean", smallest=(1,), law="gradient")
def mean_whose_gradient_is_nan(values: Array, mask: Array, axis_name: AxisName) -> Array:
    """Selects after a function of what is masked, so that a masked NaN is in the gradient, and nowhere else."""
    kept = jnp.where(mask, values + jnp.tanh(jnp.where(mask, 0, values)), 0)
    return means.masked_mean(kept, mask, axis_name)
