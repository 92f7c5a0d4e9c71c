"""Right forms of weighted means."""

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.right.catalogue import right


def _parts(values: Array, weights: Array, axis_name: AxisName) -> tuple[Array, Array]:
    wide = jnp.promote_types(values.dtype, jnp.float32)
    factors = collectives.cast_varying(lax.stop_gradient(weights).astype(wide), names(axis_name))
    return jnp.where(factors > 0, values.astype(wide), 0), factors


def _divided(total: Array, by: Array) -> Array:
    return total / jnp.where(by > 0, by, 1)


@right("weighted_mean")
def weighted_mean_of_shares(values: Array, weights: Array, axis_name: AxisName) -> Array:
    """Weights are made shares that add up to 1 before anything is multiplied, one axis after the other."""
    kept, factors = _parts(values, weights, axis_name)
    by = jnp.sum(factors)
    for name in reversed(names(axis_name)):
        by = lax.psum(by, name)
    total = jnp.sum(kept * _divided(factors, by))
    for name in names(axis_name):
        total = lax.psum(total, name)
    return total.astype(values.dtype)


@right("weighted_mean")
def weighted_mean_as_a_product(values: Array, weights: Array, axis_name: AxisName) -> Array:
    """Both sums as one product of a row of weights with the values beside ones."""
    kept, factors = _parts(values, weights, axis_name)
    beside = jnp.stack([kept.ravel(), jnp.ones_like(kept).ravel()], axis=1)
    sums = lax.psum(factors.ravel() @ beside, names(axis_name))
    return _divided(sums[0], lax.stop_gradient(sums[1])).astype(values.dtype)
