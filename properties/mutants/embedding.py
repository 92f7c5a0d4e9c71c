"""Planted bugs of embedding_lookup."""

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import embedding
from shardproof.impl.collectives import all_gather_invariant, cast_varying
from shardproof.impl.dtypes import accumulator
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.catalogue import formula_of, mutant


@mutant("embedding_lookup", smallest=(2,))
def lookup_without_the_base(table: Array, ids: Array, axis_name: AxisName) -> Array:
    """Looks up global ids in the local rows, so that every participant finds the first ones."""
    rows = ids.astype(jnp.int32)
    held = rows < table.shape[0]
    found = jnp.where(held[..., None], jnp.take(table, jnp.where(held, rows, 0), axis=0), 0)
    return lax.psum(cast_varying(found.astype(table.dtype), names(axis_name)), names(axis_name))


@mutant("embedding_lookup", smallest=(1,), law="gradient")
def lookup_whose_duplicates_count_once(table: Array, ids: Array, axis_name: AxisName) -> Array:
    """Gives a row that is looked up twice the gradient of one of the two places."""
    found = embedding.embedding_lookup(table, ids, axis_name)
    rows = ids.astype(jnp.int32)
    again = (rows[:, None] == rows[None, :]) & (jnp.arange(len(rows))[None, :] < jnp.arange(len(rows))[:, None])
    return jnp.where(again.any(axis=1)[:, None], lax.stop_gradient(found), found)


@mutant("embedding_lookup", smallest=(1,), law="gradient")
def lookup_of_unique_ids(table: Array, ids: Array, axis_name: AxisName) -> Array:
    """Promises that no id appears twice, by which two updates of a row in the gradient may become one."""
    axes = names(axis_name)
    rows = ids.astype(jnp.int32) - lax.axis_index(axes) * table.shape[0]
    held = (rows >= 0) & (rows < table.shape[0])
    wide = cast_varying(table, axes).astype(accumulator(table))
    found = wide.at[jnp.where(held, rows, table.shape[0])].get(mode="fill", fill_value=0, unique_indices=True)
    return lax.psum(found.astype(table.dtype), axes)


@mutant("embedding_lookup", law="communication", smallest=(1,), communication=formula_of("embedding_lookup", "masked"))
def embedding_by_gathering_the_table(table: Array, ids: Array, axis_name: AxisName) -> Array:
    """Gathers the table for the sake of a few rows."""
    whole = all_gather_invariant(cast_varying(table, names(axis_name)), names(axis_name), tiled=True)
    return jnp.take(whole.astype(accumulator(whole)), ids.astype(jnp.int32), axis=0).astype(table.dtype)


@mutant("embedding_lookup", smallest=(1,))
def lookup_by_narrow_positions(table: Array, ids: Array, axis_name: AxisName) -> Array:
    """Numbers the elements of the table in the dtype of the ids, which is too narrow for all of them."""
    axes = names(axis_name)
    whole = lax.all_gather(cast_varying(table, axes), axes, tiled=True)
    columns = table.shape[1]
    places = ids[..., None] * jnp.asarray(columns).astype(ids.dtype) + jnp.arange(columns).astype(ids.dtype)
    here = lax.axis_index(axes) == 0
    return lax.psum(jnp.where(here, whole.reshape(-1)[places.astype(jnp.int32)], 0), axes)
