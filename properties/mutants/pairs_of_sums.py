"""Planted bugs of products whose sums are cut into quarters, of which there are two pairs."""

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collective_matmul, collectives
from shardproof.impl.collective_matmul import aligned, multiply
from shardproof.impl.rings import WAYS, shift
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.catalogue import mutant

QUARTERS = 4


def scattered(lhs: Array, rhs: Array, axis_name: AxisName, dimension: int) -> tuple[Array, int, int]:
    """The right piece, the dimension that is scattered, and the size of a quarter of it, 0 if there are none."""
    piece = collective_matmul.paired_matmul_reduce_scatter(lhs, rhs, axis_name, scatter_dimension=dimension)
    along = lhs.ndim - 2 + dimension
    return piece, along, piece.shape[along] // QUARTERS


@mutant("matmul_reduce_scatter", smallest=(1,))
def quarters_without_the_rest(lhs: Array, rhs: Array, axis_name: AxisName, *, scatter_dimension: int = 0) -> Array:
    """Cuts a piece into quarters of as many rows each, and forgets those that are left."""
    piece, along, size = scattered(lhs, rhs, axis_name, scatter_dimension)
    if not size:
        return piece
    kept = lax.slice_in_dim(piece, 0, QUARTERS * size, axis=along)
    return jnp.concatenate([kept, jnp.zeros_like(lax.slice_in_dim(piece, QUARTERS * size, None, axis=along))], along)


def all_at_once(lhs: Array, rhs: Array, axis_name: AxisName, dimension: int, *, ways: tuple[int, int] = WAYS) -> Array:
    """Quarters of every sum along `ways`, or its few rows, whose terms all wait until all sums have come."""
    axes, p = names(axis_name), lax.axis_size(axis_name)
    lhs, rhs = aligned(lhs, rhs, axis_name=axes)
    cut, along = (lhs, lhs.ndim - 2) if dimension == 0 else (rhs, 1)
    rows, index = cut.shape[along] // p, collectives.axis_index(axis_name)
    count = max(1, min(QUARTERS, rows))
    starts = [rows * part // count for part in range(count + 1)]

    def term(quarter: int, away: int, before: tuple[Array, ...] = ()) -> Array:
        at = (index - WAYS[quarter % 2] * away) % p * rows + starts[quarter]
        waiting = lax.optimization_barrier((at, before))[0]
        part = lax.dynamic_slice_in_dim(cut, waiting, starts[quarter + 1] - starts[quarter], along)
        return multiply(part, rhs) if dimension == 0 else multiply(lhs, part)

    sums = [term(quarter, 1) for quarter in range(count)]
    for away in range(2, p + 1):
        come = tuple(shift(one, axes, ways[quarter % 2]) for quarter, one in enumerate(sums))
        sums = [one + term(quarter, away, come) for quarter, one in enumerate(come)]
    return jnp.concatenate(sums, lhs.ndim - 2 + dimension).astype(jnp.result_type(lhs, rhs))


@mutant("matmul_reduce_scatter", smallest=(3,))
def both_of_a_pair_sent_rightward(lhs: Array, rhs: Array, axis_name: AxisName, *, scatter_dimension: int = 0) -> Array:
    """Sends both quarters of a pair the same way, and adds to one what is for sums that go leftward."""
    return all_at_once(lhs, rhs, axis_name, scatter_dimension, ways=(1, 1))


@mutant("matmul_reduce_scatter", smallest=(2,), law="overlap", overlap="exposed<=4/5")
def quarters_that_wait_for_all(lhs: Array, rhs: Array, axis_name: AxisName, *, scatter_dimension: int = 0) -> Array:
    """Takes no turns: each quarter's product waits until all sums have come, and none is computed beside a transfer."""
    return all_at_once(lhs, rhs, axis_name, scatter_dimension)
