"""Planted bugs of products that gather chunks of rows whole."""

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl.collective_matmul import aligned, multiply
from shardproof.impl.collective_matmul.all_gather import arriving, assembled
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.catalogue import mutant


def in_chunks(lhs: Array, rhs: Array, axis_name: AxisName, size: int) -> Array:
    """Chunks of so many rows, of those that divide into them, and zeros in the others."""
    axes, (*_, m, k) = names(axis_name), lhs.shape
    moving, stays = aligned(lhs, rhs, axis_name=axes)
    products = []
    for start in range(0, m // size * size, size):
        cut = lax.slice_in_dim(moving, start, start + size, axis=lhs.ndim - 2)
        pieces = arriving(cut, -1, axes)
        shape = (*cut.shape[:-1], k * len(pieces))
        whole = assembled(pieces, cut.ndim - 1, shape)
        products.append(multiply(whole, stays).astype(jnp.result_type(lhs, rhs)))
    left = lax.slice_in_dim(moving, m // size * size, m, axis=lhs.ndim - 2)
    nothing = jnp.zeros_like(multiply(left, stays[:k]).astype(jnp.result_type(lhs, rhs)))
    return jnp.concatenate([*products, nothing], -2)


@mutant("all_gather_matmul_lhs_contracting", smallest=(1,))
def chunks_of_two_rows_without_the_last(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Multiplies pairs of rows, and forgets the odd one."""
    return in_chunks(lhs, rhs, axis_name, min(2, max(1, lhs.shape[-2])))
