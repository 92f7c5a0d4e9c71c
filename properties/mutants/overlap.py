"""Planted bugs of what hides communication: all of them give the right values, and send what they should."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collective_matmul, collectives, sequence_parallel
from shardproof.impl.collective_matmul import align_types, multiply
from shardproof.impl.rings import WAYS, shift
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.catalogue import mutant


def rows_met(lhs: Array, rhs: Array, axis_name: AxisName, away: Any) -> Array:
    """The rows of the right operand that the block meets that came so far round the ring."""
    p, rows = lax.axis_size(axis_name), lhs.shape[-1]
    return lax.dynamic_slice_in_dim(rhs, (collectives.axis_index(axis_name) - away) % p * rows, rows, 0)


def terms_of(lhs: Array, rhs: Array, axis_name: AxisName, dimension: int) -> tuple[Callable[[Any, int], Array], int]:
    """The product of any scattered rows or columns, by the first and their number; and how many each has."""
    lhs, rhs = align_types(lhs, rhs, axis_name=names(axis_name))
    cut, along = (lhs, lhs.ndim - 2) if dimension == 0 else (rhs, 1)

    def term(at: Any, size: int) -> Array:
        part = lax.dynamic_slice_in_dim(cut, at, size, along)
        return multiply(part, rhs) if dimension == 0 else multiply(lhs, part)

    return term, cut.shape[along] // lax.axis_size(axis_name)


@mutant("all_gather_matmul_lhs_contracting", smallest=(2,), law="overlap", overlap="exposed<=0")
def product_of_what_arrives(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Each product of its loop is of the block that the same iteration brings."""
    dtype, axes = jnp.result_type(lhs, rhs), names(axis_name)
    lhs, rhs = align_types(lhs, rhs, axis_name=axes)

    def step(carry: Any, away: Any) -> Any:
        block = shift(carry[0], axes, 1)
        return (block, carry[1] + multiply(block, rows_met(lhs, rhs, axis_name, away))), None

    own = multiply(lhs, rows_met(lhs, rhs, axis_name, 0))
    return lax.scan(step, (lhs, own), jnp.arange(1, lax.axis_size(axis_name)))[0][1].astype(dtype)


@mutant("all_gather_matmul_lhs", smallest=(2,), law="overlap", overlap="exposed<=0")
def block_held_back_by_its_product(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Each block is sent on only once it has been multiplied, which a barrier makes it wait for."""
    dtype, axes, p = jnp.result_type(lhs, rhs), names(axis_name), lax.axis_size(axis_name)
    lhs, rhs = align_types(lhs, rhs, axis_name=axes)
    block, rows = lhs, []
    for away in range(p):
        product = multiply(block, rhs)
        rows.append(product)
        if away < p - 1:
            block = shift(lax.optimization_barrier((block, product))[0], axes, 1)
    found, start = jnp.stack(rows), collectives.axis_index(axis_name)
    ordered = jnp.take(found, (start - jnp.arange(p)) % p, axis=0)  # the block of participant j came after start - j
    joined = jnp.moveaxis(ordered, 0, lhs.ndim - 2)
    return joined.reshape(*lhs.shape[:-2], p * lhs.shape[-2], rhs.shape[-1]).astype(dtype)


@mutant("all_gather_matmul_lhs", smallest=(2,), law="overlap", overlap="exposed<=0")
def gathered_before_it_is_multiplied(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Gathers all rows first, and multiplies them then."""
    return collective_matmul.all_gather_matmul_lhs(lhs, rhs, axis_name)


@mutant("all_gather_matmul_rhs", smallest=(3,), law="overlap", overlap="exposed<=0,directions=2")
def one_way_of_two(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Sends all blocks the same way round the ring, and says that it uses both."""
    return collective_matmul.ring_all_gather_matmul_rhs(lhs, rhs, axis_name)


@mutant(
    "all_gather_matmul_lhs_contracting",
    smallest=(3,),
    law="overlap",
    overlap="exposed<=0,memory<=2*lhs+rhs+3*out+4*(lhs+rhs)/p+8*p",
)
def gathered_operand_held(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Keeps all blocks that come by until the end, though it has multiplied them."""
    dtype, axes = jnp.result_type(lhs, rhs), names(axis_name)
    lhs, rhs = align_types(lhs, rhs, axis_name=axes)
    block, held = lhs, [lhs]
    total = multiply(lhs, rows_met(lhs, rhs, axis_name, 0))
    for away in range(1, lax.axis_size(axis_name)):
        block = shift(block, axes, 1)
        held.append(block)
        total = total + multiply(block, rows_met(lhs, rhs, axis_name, away))
    return lax.optimization_barrier((total, *held))[0].astype(dtype)


@mutant("matmul_reduce_scatter", smallest=(2,), law="overlap", overlap="exposed<=0")
def gradient_that_gathers(lhs: Array, rhs: Array, axis_name: AxisName, *, scatter_dimension: int = 0) -> Array:
    """Overlaps forward alone: its gradient gathers the cotangent, and multiplies both operands then."""
    axes = names(axis_name)
    lhs, rhs = align_types(lhs, rhs, axis_name=axes)

    def ring(a: Array, b: Array) -> Array:
        return collective_matmul.ring_matmul_reduce_scatter(a, b, axis_name, scatter_dimension=scatter_dimension)

    def naive(a: Array, b: Array) -> Array:
        return collective_matmul.matmul_reduce_scatter(a, b, axis_name, scatter_dimension=scatter_dimension)

    product = jax.custom_vjp(ring)
    product.defvjp(lambda a, b: (ring(a, b), (a, b)), lambda saved, ct: jax.vjp(naive, *saved)[1](ct))
    return product(lhs, rhs)


@mutant("matmul_reduce_scatter", smallest=(2,), law="overlap", overlap="exposed<=0")
def one_place_too_far(lhs: Array, rhs: Array, axis_name: AxisName, *, scatter_dimension: int = 0) -> Array:
    """Its sums end one participant short of where they belong: the last permute has no product beside it."""
    axes, p, index = names(axis_name), lax.axis_size(axis_name), collectives.axis_index(axis_name)
    term, rows = terms_of(lhs, rhs, axis_name, scatter_dimension)

    def step(total: Any, away: Any) -> Any:
        return shift(total, axes, 1) + term((index - away) % p * rows, rows), None

    total = lax.scan(step, term(index * rows, rows), jnp.arange(1, p))[0]
    return shift(total, axes, 1).astype(jnp.result_type(lhs, rhs))


@mutant("matmul_reduce_scatter", smallest=(2,), law="overlap", overlap="exposed<=4/5")
def both_halves_wait_for_both(lhs: Array, rhs: Array, axis_name: AxisName, *, scatter_dimension: int = 0) -> Array:
    """Takes no turns: each half's product waits until both sums have come, and none is computed beside a transfer."""
    axes, p, index = names(axis_name), lax.axis_size(axis_name), collectives.axis_index(axis_name)
    term, rows = terms_of(lhs, rhs, axis_name, scatter_dimension)
    sizes = (rows - rows // 2, rows // 2)

    def term_after(before: Any, half: int, away: int) -> Array:
        at = (index - WAYS[half] * away) % p * rows + half * sizes[0]
        return term(lax.optimization_barrier((at, before))[0], sizes[half])

    sums = [term_after((), half, 1) for half in (0, 1)]
    for away in range(2, p + 1):
        arrived = [shift(one, axes, way) for one, way in zip(sums, WAYS, strict=True)]
        sums = [one + term_after(arrived, half, away) for half, one in enumerate(arrived)]
    return jnp.concatenate(sums, lhs.ndim - 2 + scatter_dimension).astype(jnp.result_type(lhs, rhs))


@mutant("sequence_parallel_mlp", smallest=(2,), law="overlap", overlap="exposed<=1/6")
def mlp_that_hides_nothing(x: Array, w_in: Array, w_out: Array, axis_name: AxisName) -> Array:
    """Gathers before it multiplies, and multiplies before it scatters."""
    return sequence_parallel.sequence_parallel_mlp(x, w_in, w_out, axis_name)
