"""Planted bugs of halo_exchange."""

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import halo
from shardproof.properties.mutants.axes import AxisName
from shardproof.properties.mutants.catalogue import mutant


@mutant("halo_exchange", smallest=(1,))
def halo_sides_swapped(x: Array, axis_name: AxisName, *, before: int, after: int, axis: int = 0) -> Array:
    """Attaches as many rows in front as belong behind."""
    return halo.halo_exchange(x, axis_name, before=after, after=before, axis=axis)


@mutant("halo_exchange", smallest=(3,))
def halo_of_the_nearest_only(x: Array, axis_name: AxisName, *, before: int, after: int, axis: int = 0) -> Array:
    """Takes rows of the nearest neighbour again where the halo reaches past it."""
    n, p = x.shape[axis], lax.axis_size(axis_name)
    whole = halo.halo_exchange(x, axis_name, before=before, after=after, axis=axis)
    if not n < before <= 2 * n or p < 3:
        return whole
    near = lax.slice_in_dim(whole, before - n, before, axis=axis)
    again = lax.slice_in_dim(near, 2 * n - before, n, axis=axis)
    return jnp.concatenate([again, lax.slice_in_dim(whole, before - n, None, axis=axis)], axis)
