"""Right ways to write collective matrix products."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.impl.collective_matmul import multiply, naive
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.catalogue import right
from shardproof.properties.mutants.right.pieces import accumulator, divided


def multiplied(spec: str, lhs: Array, rhs: Array) -> Array:
    """An einsum that adds up in float32, or in a dtype of the operands' own that is wider."""
    wide = jnp.promote_types(lhs.dtype, jnp.float32) if jnp.issubdtype(lhs.dtype, jnp.inexact) else lhs.dtype
    return jnp.einsum(spec, lhs, rhs, preferred_element_type=wide)


@right("all_gather_matmul_lhs_contracting")
def contract_padded_blocks(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Multiplies every block, with zeros around it, by the whole right operand: zero times infinity is a term more."""
    axes, p, k = names(axis_name), lax.axis_size(axis_name), lhs.shape[1]
    empty = jnp.zeros((lhs.shape[0], p * k), lhs.dtype)
    total = multiplied("mk,kn->mn", lhs[:, :0], rhs[:0])
    for step in range(p):
        at = (lax.axis_index(axes) + step) % p * k
        total = total + multiplied("mk,kn->mn", lax.dynamic_update_slice_in_dim(empty, lhs, at, 1), rhs)
        lhs = collectives.ring_shift(lhs, axes, offset=-1)
    return total.astype(lhs.dtype)


@right("all_gather_matmul_lhs")
def gather_the_products(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Multiplies every row by all columns of all participants, so that each can pick its own ones later."""
    axes = names(axis_name)
    rows = multiplied("mk,pkn->pmn", lhs, collectives.all_gather(rhs, axes)).astype(lhs.dtype)
    return collectives.all_to_all(rows, axes, split_axis=0, concat_axis=0, tiled=True).reshape(-1, rhs.shape[1])


@right("all_gather_matmul_rhs")
def scan_over_the_rows_of_weights(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Adds up outer products of columns and rows, one after the other."""
    weights = collectives.all_gather(rhs, axis_name, tiled=True)
    zeros = multiplied("mk,kn->mn", lhs[:, :0], weights[:0])

    def step(total: Array, pair: tuple[Array, Array]) -> tuple[Array, None]:
        return total + multiplied("m,n->mn", *pair), None

    return lax.scan(step, zeros, (lhs.T, weights))[0].astype(lhs.dtype)


@right("matmul_all_reduce")
def gather_the_terms(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Gathers everybody's product and adds them up: right, and typed varying."""
    terms = collectives.all_gather(multiplied("mk,kn->mn", lhs, rhs), axis_name)
    return jnp.sum(terms, 0, dtype=terms.dtype).astype(lhs.dtype)


@right("transformer_block")
def block_in_a_checkpoint(x: Array, w_in: Array, w_out: Array, axis_name: AxisName) -> Array:
    """Computes the hidden units once more for the gradient."""
    return jax.checkpoint(lambda x, w_in, w_out: naive.transformer_block(x, w_in, w_out, axis_name))(x, w_in, w_out)


@right("matmul_all_reduce")
def product_that_keeps_what_it_needs(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Keeps an operand for the gradient where the other one is differentiated (`symbolic_zeros`)."""

    def product(lhs: Array, rhs: Array) -> Array:
        return naive.matmul_all_reduce(lhs, rhs, axis_name)

    def forward(lhs: Any, rhs: Any) -> tuple[Array, tuple[Array, ...]]:
        kept = (x.value if other.perturbed else jnp.zeros_like(x.value) for x, other in ((lhs, rhs), (rhs, lhs)))
        return product(lhs.value, rhs.value), tuple(kept)

    function = jax.custom_vjp(product)
    function.defvjp(forward, lambda kept, ct: jax.vjp(product, *kept)[1](ct), symbolic_zeros=True)
    return function(lhs, rhs)


@right("all_reduce")
def sum_pairwise(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Adds up neighbours, then neighbours of the sums, in the operands' own dtype."""
    if op not in ("sum", "mean") or x.dtype == bool:
        return collectives.all_reduce(x, axis_name, op=op)
    blocks = collectives.all_gather(x, axis_name)
    while len(blocks) > 1:
        odd = blocks[len(blocks) // 2 * 2 :]
        blocks = jnp.concatenate([blocks[0 : len(blocks) // 2 * 2 : 2] + blocks[1::2], odd])
    return divided(blocks[0], lax.axis_size(axis_name)) if op == "mean" else blocks[0]


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


@right("matmul_all_reduce")
def partial_sums_sent_in_the_operands_dtype(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Rounds every participant's partial sum once, where it is sent, and adds those up in the accumulator's dtype."""
    part = collectives.cast_varying(multiply(lhs, rhs), names(axis_name))
    sent = part.astype(lhs.dtype).astype(part.dtype)
    return collectives.all_reduce(sent, axis_name).astype(lhs.dtype)


@right("matmul_reduce_scatter")
def exchange_and_add(lhs: Array, rhs: Array, axis_name: AxisName, *, scatter_dimension: int = 0) -> Array:
    """Sends every participant the terms of its piece, and adds them up there."""
    axes, p = names(axis_name), lax.axis_size(axis_name)
    product = collectives.cast_varying(multiplied("mk,kn->mn", lhs, rhs), axes)
    pieces = jnp.stack(jnp.split(product, p, axis=scatter_dimension))
    terms = collectives.all_to_all(pieces, axes, split_axis=0, concat_axis=0, tiled=True)
    return jnp.sum(terms, 0, dtype=terms.dtype).astype(lhs.dtype)
