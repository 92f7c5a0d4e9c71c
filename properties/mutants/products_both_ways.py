"""Planted bugs of products along both ways of a ring, of those that reduce along one, and of transformer blocks.

Sums of 16-bit floats that are rounded at every hop are in `taking_turns`. A participant's own sum may be rounded before
it is sent, and with so much allowed, what a few more hops round stays within the bound up to 7 participants. So that
sums are kept in float32 is held by the formulas, which count twice the bytes.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collective_matmul, collectives
from shardproof.impl.collective_matmul import multiply
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.catalogue import mutant
from shardproof.properties.mutants.rings import passed

Ranges = Callable[[int], tuple[slice, slice]]
"""Given the rows of a block: what is sent to the right, and what to the left."""


def in_half(rows: int) -> tuple[slice, slice]:
    """The right halves, the first of which has the odd row."""
    return slice(0, rows - rows // 2), slice(rows - rows // 2, rows)


def both_ways(lhs: Array, rhs: Array, axis_name: AxisName, *, cut: Ranges = in_half, meets: Ranges = in_half) -> Array:
    """The gathered right operand in halves `cut`, each of which meets the columns of the left one that `meets` says."""
    p, rows, index = lax.axis_size(axis_name), rhs.shape[0], collectives.axis_index(axis_name)
    blocks = jnp.moveaxis(lhs.reshape(*lhs.shape[:-1], p, rows), -2, 0)
    total = multiply(lax.dynamic_index_in_dim(blocks, index, keepdims=False), rhs)
    for way, sent, met in zip((1, -1), cut(rows), meets(rows), strict=True):
        for i, part in enumerate(passed(rhs[sent], axis_name, p - 1, way)[1:], 1):
            columns = lax.dynamic_index_in_dim(blocks, (index - way * i) % p, keepdims=False)[..., met]
            total = total + multiply(columns[..., : len(part)], part[: columns.shape[-1]])
    return total.astype(jnp.result_type(lhs, rhs))


@mutant("all_gather_matmul_rhs", smallest=(2,))
def halves_swapped(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Takes each half that arrives for the other one of its block."""
    return both_ways(lhs, rhs, axis_name, meets=lambda rows: in_half(rows)[::-1])


@mutant("all_gather_matmul_rhs", smallest=(2,))
def halves_without_the_odd_row(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Cuts blocks into two equal halves, and drops the row that is left if there is an odd number."""

    def cut(rows: int) -> tuple[slice, slice]:
        return slice(0, rows // 2), slice(rows // 2, rows // 2 * 2)

    return both_ways(lhs, rhs, axis_name, cut=cut, meets=cut)


@mutant("matmul_reduce_scatter", smallest=(2,))
def sum_of_the_first_column_alone(lhs: Array, rhs: Array, axis_name: AxisName, *, scatter_dimension: int = 0) -> Array:
    """Scatters rows along any dimension, and takes the right number of columns."""
    if scatter_dimension == 0:
        return collective_matmul.ring_matmul_reduce_scatter(lhs, rhs, axis_name)
    whole = collectives.cast_varying(collectives.all_reduce(multiply(lhs, rhs), axis_name), names(axis_name))
    return whole[..., : rhs.shape[1] // lax.axis_size(axis_name)].astype(jnp.result_type(lhs, rhs))


@mutant("transformer_block", law="gradient", smallest=(1,))
def block_with_a_gradient_everywhere(x: Array, w_in: Array, w_out: Array, axis_name: AxisName) -> Array:
    """Passes gradients through hidden values that relu has set to zero."""
    hidden = collective_matmul.ring_all_gather_matmul_lhs_contracting(x, w_in, axis_name)
    kept = hidden + lax.stop_gradient(jax.nn.relu(hidden) - hidden)
    return collective_matmul.ring_matmul_reduce_scatter(kept, w_out, axis_name, scatter_dimension=1)


@mutant("transformer_block", smallest=(2,))
def block_with_relu_of_partial_sums(x: Array, w_in: Array, w_out: Array, axis_name: AxisName) -> Array:
    """Takes relu of every block's product as it comes by, and adds up the results."""
    p, k, index = lax.axis_size(axis_name), x.shape[-1], collectives.axis_index(axis_name)
    hidden = jnp.zeros((), jnp.float32)
    for i, block in enumerate(passed(x, axis_name, p - 1)):
        rows = lax.dynamic_slice_in_dim(w_in, (index - i) % p * k, k)
        hidden = hidden + jax.nn.relu(multiply(block, rows))
    hidden = hidden.astype(x.dtype)
    return collective_matmul.ring_matmul_reduce_scatter(hidden, w_out, axis_name, scatter_dimension=1)
