"""Planted bugs of what hides communication: all of them give the right values, and send what they should."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collective_matmul, collectives
from shardproof.impl.collective_matmul import align_types, multiply
from shardproof.impl.rings import shift
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.catalogue import mutant


def rows_met(lhs: Array, rhs: Array, axis_name: AxisName, away: Any) -> Array:
    """The rows of the right operand that the block meets that came so far round the ring."""
    p, rows = lax.axis_size(axis_name), lhs.shape[-1]
    return lax.dynamic_slice_in_dim(rhs, (collectives.axis_index(axis_name) - away) % p * rows, rows, 0)


def term_of(lhs: Array, rhs: Array, axis_name: AxisName, dimension: int) -> Callable[[Any], Array]:
    """The product that a participant adds to the sum which ends so far away round the ring."""
    lhs, rhs = align_types(lhs, rhs, axis_name=names(axis_name))
    cut, along = (lhs, lhs.ndim - 2) if dimension == 0 else (rhs, 1)
    p, rows = lax.axis_size(axis_name), cut.shape[along] // lax.axis_size(axis_name)

    def term(away: Any) -> Array:
        at = (collectives.axis_index(axis_name) - away) % p * rows
        part = lax.dynamic_slice_in_dim(cut, at, rows, along)
        return multiply(part, rhs) if dimension == 0 else multiply(lhs, part)

    return term


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
    dtype, axes, p = jnp.result_type(lhs, rhs), names(axis_name), lax.axis_size(axis_name)
    term = term_of(lhs, rhs, axis_name, scatter_dimension)

    def step(total: Any, away: Any) -> Any:
        return shift(total, axes, 1) + term(away), None

    total = lax.scan(step, term(0), jnp.arange(1, p))[0]
    return shift(total, axes, 1).astype(dtype)
