"""Embedding lookup in a table whose rows are sharded: vocabulary-parallel, as the first layer of a large model has it.

An id outside [0, V) has a row of zeros, and no gradient; an id that appears twice adds up in the table's gradient.
"""

import jax.numpy as jnp
from jax import lax

from shardproof.impl.arguments import AxisName, check_axes, check_kind, check_rank
from shardproof.impl.collectives import Block, accumulator, axis_index, cast_varying, varying


def embedding_lookup(table: Block, ids: Block, axis_name: AxisName) -> Block:
    """`table [V_Y, D]`, `ids […]` to `[…, D]`, typed invariant: looks up the ids that are here, and adds up.

    One participant has a row and the others add zeros, so nothing is rounded, and the result travels in the table's
    dtype, which is numeric. Gradients of a row that is looked up more than once are added up in float32 for 16-bit
    floats, and rounded once. Ids are integers of any width, the same on all participants; they may differ along other
    axes.
    """
    axes = check_axes("embedding_lookup", axis_name)
    check_rank("embedding_lookup", "table", table, 2)
    check_kind("embedding_lookup", "table", table, jnp.number, "numbers")
    check_kind("embedding_lookup", "ids", ids, jnp.integer, "integers")
    table, v = cast_varying(table, axes), table.shape[0]
    # in a dtype that holds every row number and, of ids that are too large for it, something negative
    rows = ids.astype(jnp.int64 if ids.dtype.itemsize > 4 else jnp.int32) - axis_index(axes) * v
    if not v:
        zeros = jnp.zeros((*rows.shape, table.shape[1]), table.dtype)
        return lax.psum(cast_varying(zeros, varying(table) | varying(rows)), axes)
    held = (rows >= 0) & (rows < v)
    # widened before rows are taken, so that their cotangents are added up in the accumulator's dtype
    taken = jnp.take(table.astype(accumulator(table)), jnp.where(held, rows, 0), axis=0, mode="clip")
    return lax.psum(jnp.where(held[..., None], taken, 0).astype(table.dtype), axes)
