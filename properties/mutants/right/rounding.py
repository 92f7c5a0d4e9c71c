"""Right ways to add up, which round in another order than the reference does, or hardly at all."""

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.impl.collective_matmul import multiply
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.right.catalogue import right
from shardproof.properties.mutants.right.pieces import accumulator, divided, spread


def reduced(x: Array, axis_name: AxisName, op: str, add: object) -> Array:
    """What `add` makes of all participants' blocks `[p, …]`, for a sum or mean; another reduction by `jax.lax`."""
    assert callable(add)
    if op not in ("sum", "mean") or x.dtype == bool:
        return collectives.all_reduce(x, axis_name, op=op)
    total: Array = add(collectives.all_gather(x, axis_name))
    return divided(total, lax.axis_size(axis_name)) if op == "mean" else total


@right("all_reduce")
def sum_pairwise(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Adds up neighbours, then neighbours of the sums, in the operands' own dtype."""

    def add(blocks: Array) -> Array:
        while len(blocks) > 1:
            odd = blocks[len(blocks) // 2 * 2 :]
            blocks = jnp.concatenate([blocks[0 : len(blocks) // 2 * 2 : 2] + blocks[1::2], odd])
        return blocks[0]

    return reduced(x, axis_name, op, add)


@right("all_reduce")
def mean_of_scaled_blocks(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Multiplies every block by the reciprocal of their number before it adds them up."""
    if op != "mean" or not jnp.issubdtype(x.dtype, jnp.floating):
        return collectives.all_reduce(x, axis_name, op=op)
    wide = x.astype(accumulator(x.dtype)) * (1 / lax.axis_size(axis_name))
    return collectives.all_reduce(wide, axis_name).astype(x.dtype)


@right("all_gather_matmul_lhs")
def rows_by_a_plain_product(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Leaves the accumulator to the compiler, as `@` does."""
    return collectives.all_gather(lhs, axis_name, tiled=True) @ rhs


@right("all_gather_matmul_lhs")
def rows_in_two_halves(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Multiplies each half of the contracted dimension by itself, the second first, and adds them in float32."""
    whole, half = collectives.all_gather(lhs, axis_name, tiled=True), lhs.shape[1] // 2
    return (multiply(whole[:, half:], rhs[half:]) + multiply(whole[:, :half], rhs[:half])).astype(lhs.dtype)


@right("all_gather_matmul_lhs")
def rows_round_a_ring_of_wide_sums(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Passes rows round the ring, and adds each product to zeros of the accumulator's dtype."""
    axes, p, m = names(axis_name), lax.axis_size(axis_name), lhs.shape[0]
    index, block = lax.axis_index(axes), spread(lhs, axis_name)
    total = jnp.zeros_like(multiply(jnp.concatenate([block] * p), rhs))
    for step in range(p):
        product = multiply(block, rhs)
        at = (index - step) % p * m
        old = lax.dynamic_slice_in_dim(total, at, m)
        total = lax.dynamic_update_slice_in_dim(total, old + product, at, 0)
        block = collectives.ring_shift(block, axes)
    return total.astype(lhs.dtype)


@right("matmul_all_reduce")
def partial_sums_sent_in_the_operands_dtype(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Rounds every participant's partial sum once, where it is sent, and adds those up in the accumulator's dtype."""
    part = collectives.cast_varying(multiply(lhs, rhs), names(axis_name))
    sent = part.astype(lhs.dtype).astype(part.dtype)
    return collectives.all_reduce(sent, axis_name).astype(lhs.dtype)
