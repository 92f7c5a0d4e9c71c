"""Planted bugs that only a mesh shows that is larger than what one machine usually pretends to have."""

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collective_matmul, collectives
from shardproof.properties.mutants.axes import AxisName
from shardproof.properties.mutants.catalogue import mutant
from shardproof.properties.mutants.gradients import with_gradient


@mutant("broadcast", smallest=(17,), runs="large")
def broadcast_with_four_bits(x: Array, axis_name: AxisName, *, root: int = 0) -> Array:
    """Keeps the root in four bits, which is too few for more than 16 participants."""
    return collectives.broadcast(x, axis_name, root=root & 15)


@mutant("broadcast", law="gradient", smallest=(9,), runs="large")
def broadcast_with_a_gradient_of_eight(x: Array, axis_name: AxisName, *, root: int = 0) -> Array:
    """Gives the root the gradients of the first eight participants only."""
    return with_gradient(
        lambda x: collectives.broadcast(x, axis_name, root=root),
        lambda ct: jnp.where(
            lax.axis_index(axis_name) == root,
            collectives.all_reduce(jnp.where(lax.axis_index(axis_name) < 8, ct, jnp.zeros_like(ct)), axis_name),
            jnp.zeros_like(ct),
        ),
        x,
    )


TILE = 128
"""The side of a tile."""


@mutant("all_gather_matmul_lhs", smallest=(1,))
def product_without_the_last_tile(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Leaves out the tile in the corner, which only a block with two sides beyond 128 has."""
    m, k = lhs.shape[-2:]
    corner = (jnp.arange(m) >= TILE)[:, None] & (jnp.arange(k) >= TILE)
    return collective_matmul.all_gather_matmul_lhs(jnp.where(corner, jnp.zeros_like(lhs), lhs), rhs, axis_name)


@mutant("all_reduce", smallest=(2,))
def sum_of_a_thousand_elements(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Reduces the first 1,024 elements and leaves its own in place of the others."""
    reduced = collectives.all_reduce(x, axis_name, op=op)
    if x.size <= 1024:
        return reduced
    added = (jnp.arange(x.size) < 1024).reshape(x.shape)
    return jnp.where(added, reduced, x.astype(reduced.dtype))
