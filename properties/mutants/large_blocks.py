"""Planted bugs that only large blocks show: products with two long sides, collectives of thousands of elements."""

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collective_matmul, collectives
from shardproof.properties.mutants.axes import AxisName
from shardproof.properties.mutants.catalogue import mutant

TILE = 128
"""The side of a tile."""


@mutant("all_gather_matmul_lhs", smallest=(1,))
def product_without_the_last_tile(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Leaves out the tile in the corner, which only a block with two sides beyond 128 has."""
    m, k = lhs.shape[-2:]
    corner = (jnp.arange(m) >= TILE)[:, None] & (jnp.arange(k) >= TILE)
    return collective_matmul.all_gather_matmul_lhs(jnp.where(corner, jnp.zeros_like(lhs), lhs), rhs, axis_name)


@mutant("matmul_reduce_scatter", smallest=(1,))
def result_without_the_last_tile(lhs: Array, rhs: Array, axis_name: AxisName, *, scatter_dimension: int = 0) -> Array:
    """Leaves zeros in a result's tile in the corner, where both of its sides are beyond 128."""
    right = collective_matmul.matmul_reduce_scatter(lhs, rhs, axis_name, scatter_dimension=scatter_dimension)
    m, n = right.shape[-2:]
    corner = (jnp.arange(m) >= TILE)[:, None] & (jnp.arange(n) >= TILE)
    return jnp.where(corner, jnp.zeros_like(right), right)


@mutant("all_gather_matmul_lhs", law="gradient", smallest=(1,), form="user")
def weights_that_learn_from_whole_tiles(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Leaves the rows behind the last whole tile of 48 out of the gradient of the weights."""
    right = collective_matmul.all_gather_matmul_lhs(lhs, rhs, axis_name)
    known = collective_matmul.all_gather_matmul_lhs(lhs, lax.stop_gradient(rhs), axis_name)
    rows = right.shape[-2]
    learnt = jnp.arange(rows) < (rows - rows % 48 if rows > 48 else rows)
    return jnp.where(learnt[:, None], right, known)


@mutant("all_reduce", smallest=(2,))
def sum_of_a_thousand_elements(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Reduces the first 1,024 elements and leaves its own in place of the others."""
    reduced = collectives.all_reduce(x, axis_name, op=op)
    if x.size <= 1024:
        return reduced
    added = (jnp.arange(x.size) < 1024).reshape(x.shape)
    return jnp.where(added, reduced, x.astype(reduced.dtype))
