"""Right forms of matrix products in any layout."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import baselines, collectives
from shardproof.impl.baselines import Layout
from shardproof.impl.collective_matmul.operands import aligned, multiply
from shardproof.properties.mutants.right.catalogue import right


def _added_up(block: Array, dimension: int, axes: tuple[str, ...]) -> Array:
    """All blocks along an axis tuple, every one of them put in its place in zeros."""
    if not axes:
        return block
    n = block.shape[dimension]
    sides = [side * (lax.axis_size(axes) if i == dimension else 1) for i, side in enumerate(block.shape)]
    zeros = collectives.cast_varying(jnp.zeros(sides, block.dtype), collectives.varying(block) | {*axes})
    block = collectives.cast_varying(block, axes)
    return lax.psum(lax.dynamic_update_slice_in_dim(zeros, block, collectives.axis_index(axes) * n, dimension), axes)


def _of_whole_operands(lhs: Array, rhs: Array, left: Layout, right: Layout, result: Layout) -> Array:
    for dimension in (0, 1):
        lhs, rhs = _added_up(lhs, dimension, left[dimension]), _added_up(rhs, dimension, right[dimension])
    return baselines.relaid(multiply(*aligned(lhs, rhs)).astype(lhs.dtype), ((), ()), result)


@right("sharded_matmul")
def matmul_of_operands_added_up(lhs: Array, rhs: Array, **layouts: Any) -> Array:
    """Blocks are put in their places in zeros and added up, and of the whole product a part is cut out."""
    return baselines.Matmul("matmul", _of_whole_operands)(lhs, rhs, **layouts)


@right("two_matmuls", whole=True)
def two_matmuls_weights_first(x: Array, w_in: Array, w_out: Array, *, mesh: Any, **layouts: Any) -> Array:
    """Multiplies the weights with one another, on every device of its own `shard_map`."""
    wide = jnp.promote_types(x.dtype, jnp.float32)

    def product(x: Array, w_in: Array, w_out: Array) -> Array:
        weights = jnp.matmul(w_in, w_out, preferred_element_type=wide)
        return jnp.matmul(x.astype(wide), weights).astype(x.dtype)

    rows, _ = baselines.layout(layouts["rows"], ())
    of_rows = baselines.spec((rows, ()))
    whole = baselines.spec(((), ()))
    on_all: Any = jax.shard_map(product, mesh=mesh, in_specs=(of_rows, whole, whole), out_specs=of_rows)
    return on_all(x, w_in, w_out)
