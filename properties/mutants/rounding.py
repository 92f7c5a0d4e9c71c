"""Planted bugs of arithmetic: one number of many is added up, divided or sent in a dtype that is too narrow."""

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.impl.collective_matmul import multiply
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.catalogue import mutant
from shardproof.properties.mutants.gradients import with_gradient


def first_only(x: Array, changed: Array, axis_name: AxisName) -> Array:
    """`changed` on the first participant, and `x` on all others."""
    return jnp.where(lax.axis_index(names(axis_name)) == 0, changed, x)


def through(x: Array, dtype: jnp.dtype) -> Array:
    """Real numbers after a stay in another dtype, all others as they are."""
    return x.astype(dtype).astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x


@mutant("all_reduce", smallest=(1,))
def sum_of_bfloat16_in_float16(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Adds bfloat16 up in float16, which has more digits and not half of the exponents."""
    if op != "sum" or x.dtype != jnp.bfloat16:
        return collectives.all_reduce(x, axis_name, op=op)
    return collectives.all_reduce(x.astype(jnp.float16), axis_name).astype(x.dtype)


@mutant("all_reduce", smallest=(1,))
def sum_with_one_block_in_bfloat16(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Rounds the block of the first participant to bfloat16."""
    return collectives.all_reduce(
        first_only(x, through(x, jnp.bfloat16), axis_name) if op == "sum" else x, axis_name, op=op
    )


@mutant("all_reduce", law="gradient", smallest=(1,))
def reduce_with_a_gradient_in_bfloat16(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Its gradient is rounded to bfloat16."""
    if op != "sum":
        return collectives.all_reduce(x, axis_name, op=op)
    return with_gradient(lambda x: collectives.all_reduce(x, axis_name), lambda ct: through(ct, jnp.bfloat16), x)


@mutant("all_gather_matmul_lhs", smallest=(1,))
def rows_in_two_halves_rounded(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Rounds the product of each half of the contracted dimension to the operands' dtype before it adds them."""
    whole, dtype = collectives.all_gather(lhs, axis_name, tiled=True), lhs.dtype
    half = lhs.shape[1] // 2
    return multiply(whole[:, :half], rhs[:half]).astype(dtype) + multiply(whole[:, half:], rhs[half:]).astype(dtype)


@mutant("matmul_reduce_scatter", smallest=(3,))
def scatter_rounded_at_every_hop(lhs: Array, rhs: Array, axis_name: AxisName, *, scatter_dimension: int = 0) -> Array:
    """Rounds the travelling sum to the operands' dtype at every hop of the ring."""
    axes, p = names(axis_name), lax.axis_size(axis_name)
    product = collectives.cast_varying(multiply(lhs, rhs), axes)
    pieces = jnp.stack(jnp.split(product, p, axis=scatter_dimension))
    index = lax.axis_index(axes)
    total = pieces[(index - 1) % p].astype(lhs.dtype)
    for step in range(2, p + 1):
        total = collectives.ring_shift(total, axes)
        total = (total.astype(product.dtype) + pieces[(index - step) % p]).astype(lhs.dtype)
    return total
