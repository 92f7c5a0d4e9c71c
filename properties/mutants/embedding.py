"""Planted bugs of embedding_lookup."""

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl.collectives import cast_varying
from shardproof.impl.dtypes import accumulator
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.catalogue import mutant


@mutant("embedding_lookup", smallest=(2,))
def lookup_without_the_base(table: Array, ids: Array, axis_name: AxisName) -> Array:
    """Looks up global ids in the local rows, so that every participant finds the first ones."""
    rows = ids.astype(jnp.int32)
    held = rows < table.shape[0]
    found = jnp.where(held[..., None], jnp.take(table, jnp.where(held, rows, 0), axis=0), 0)
    return lax.psum(cast_varying(found.astype(table.dtype), names(axis_name)), names(axis_name))


@mutant("embedding_lookup", smallest=(1,), law="gradient")
def lookup_of_unique_ids(table: Array, ids: Array, axis_name: AxisName) -> Array:
    """Promises that no id appears twice, by which two updates of a row in the gradient may become one."""
    axes = names(axis_name)
    rows = ids.astype(jnp.int32) - lax.axis_index(axes) * table.shape[0]
    held = (rows >= 0) & (rows < table.shape[0])
    wide = cast_varying(table, axes).astype(accumulator(table))
    found = wide.at[jnp.where(held, rows, table.shape[0])].get(mode="fill", fill_value=0, unique_indices=True)
    return lax.psum(found.astype(table.dtype), axes)
