"""Planted bugs of products that gather an operand along a ring, several of them once published as working."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.impl.collective_matmul import multiply
from shardproof.properties.mutants.axes import AxisName
from shardproof.properties.mutants.catalogue import mutant
from shardproof.properties.mutants.rings import passed

Chunk = Callable[[Any, int, int], Any]
"""Given the index, how far a block came, and p: whose block it is taken for."""


def came(index: Any, away: int, p: int) -> Any:
    """Whose block it is that came so far, going rightward."""
    return (index - away) % p


def contracted(lhs: Array, rhs: Array, axis_name: AxisName, chunk: Chunk = came, steps: int | None = None) -> Array:
    """A ring that passes columns of the left operand, and multiplies them by the rows that `chunk` says."""
    p, k = lax.axis_size(axis_name), lhs.shape[-1]
    index = collectives.axis_index(axis_name)
    blocks = passed(lhs, axis_name, p - 1 if steps is None else steps)
    rows = [lax.dynamic_slice_in_dim(rhs, chunk(index, i, p) * k, k) for i in range(len(blocks))]
    total = sum(multiply(block, row) for block, row in zip(blocks, rows, strict=True))
    return jnp.asarray(total).astype(jnp.result_type(lhs, rhs))


@mutant("all_gather_matmul_lhs_contracting", smallest=(1,))
def product_one_step_long(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Goes round the whole ring, so that every device's own block is multiplied twice."""
    return contracted(lhs, rhs, axis_name, steps=lax.axis_size(axis_name))


@mutant("all_gather_matmul_lhs_contracting", smallest=(2,))
def product_in_the_input_dtype(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Adds up 16-bit floats in 16 bits, one block after the other."""
    p, k, index = lax.axis_size(axis_name), lhs.shape[-1], collectives.axis_index(axis_name)
    total = jnp.zeros((*lhs.shape[:-1], rhs.shape[1]), jnp.result_type(lhs, rhs))
    for i, block in enumerate(passed(lhs, axis_name, p - 1)):
        total = total + jnp.matmul(block, lax.dynamic_slice_in_dim(rhs, came(index, i, p) * k, k)).astype(total.dtype)
    return total
