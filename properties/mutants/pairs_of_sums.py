"""Planted bugs of products whose sums are cut into quarters, of which there are two pairs."""

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collective_matmul
from shardproof.properties.mutants.axes import AxisName
from shardproof.properties.mutants.catalogue import mutant

QUARTERS = 4


def scattered(lhs: Array, rhs: Array, axis_name: AxisName, dimension: int) -> tuple[Array, int, int]:
    """The right piece, the dimension that is scattered, and the size of a quarter of it, 0 if there are none."""
    piece = collective_matmul.paired_matmul_reduce_scatter(lhs, rhs, axis_name, scatter_dimension=dimension)
    along = lhs.ndim - 2 + dimension
    return piece, along, piece.shape[along] // QUARTERS


@mutant("matmul_reduce_scatter", smallest=(1,), form="overlapped")
def quarters_without_the_rest(lhs: Array, rhs: Array, axis_name: AxisName, *, scatter_dimension: int = 0) -> Array:
    """Cuts a piece into quarters of as many rows each, and forgets those that are left."""
    piece, along, size = scattered(lhs, rhs, axis_name, scatter_dimension)
    if not size:
        return piece
    kept = lax.slice_in_dim(piece, 0, QUARTERS * size, axis=along)
    return jnp.concatenate([kept, jnp.zeros_like(lax.slice_in_dim(piece, QUARTERS * size, None, axis=along))], along)


@mutant("matmul_reduce_scatter", smallest=(1,), form="overlapped")
def pairs_in_the_order_of_ways(lhs: Array, rhs: Array, axis_name: AxisName, *, scatter_dimension: int = 0) -> Array:
    """Puts both quarters that go rightward before those that go leftward, which stand between them."""
    piece, along, size = scattered(lhs, rhs, axis_name, scatter_dimension)
    if not size:
        return piece
    starts = [size * quarter for quarter in (0, 2, 1, 3)]
    quarters = [lax.slice_in_dim(piece, start, start + size, axis=along) for start in starts]
    rest = lax.slice_in_dim(piece, QUARTERS * size, None, axis=along)
    return jnp.concatenate([*quarters, rest], along)
