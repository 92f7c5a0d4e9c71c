"""Planted bugs of products that only NaN and infinities show."""

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collective_matmul, collectives
from shardproof.impl.collective_matmul import multiply
from shardproof.properties.mutants.axes import AxisName
from shardproof.properties.mutants.catalogue import mutant
from shardproof.properties.mutants.products import came
from shardproof.properties.mutants.rings import passed


@mutant("all_gather_matmul_lhs_contracting", smallest=(2,))
def product_with_zeros_for_what_comes_not_finite(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Takes zeros for what is not finite in the blocks that come from other participants."""
    p, k, index = lax.axis_size(axis_name), lhs.shape[-1], collectives.axis_index(axis_name)
    own, *others = passed(lhs, axis_name, p - 1)
    blocks = [own, *(jnp.where(jnp.isfinite(block), block, jnp.zeros_like(block)) for block in others)]
    rows = [lax.dynamic_slice_in_dim(rhs, came(index, i, p) * k, k) for i in range(p)]
    total = sum(multiply(block, row) for block, row in zip(blocks, rows, strict=True))
    return jnp.asarray(total).astype(jnp.result_type(lhs, rhs))


@mutant("matmul_all_reduce", smallest=(1,))
def sum_of_products_without_nan(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Puts zero in place of a sum that is NaN."""
    total = collective_matmul.matmul_all_reduce(lhs, rhs, axis_name)
    return jnp.where(jnp.isnan(total), jnp.zeros_like(total), total)
