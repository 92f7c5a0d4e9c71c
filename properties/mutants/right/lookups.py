"""Right forms of embedding_lookup."""

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.impl.dtypes import accumulator
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.right.catalogue import right


def _ids(ids: Array) -> Array:
    return ids.astype(jnp.int64 if ids.dtype.itemsize > 4 else jnp.int32)


@right("embedding_lookup")
def embedding_one_hot(table: Array, ids: Array, axis_name: AxisName) -> Array:
    """Every row is compared with every id, selected and added up."""
    table = collectives.cast_varying(table, names(axis_name))
    mine = lax.axis_index(names(axis_name)) * table.shape[0] + jnp.arange(table.shape[0])
    chosen = (_ids(ids)[..., None] == mine)[..., None]
    rows = jnp.sum(jnp.where(chosen, table.astype(accumulator(table)), 0), axis=-2).astype(table.dtype)
    return lax.psum(rows, names(axis_name))


@right("embedding_lookup")
def embedding_of_the_whole_table(table: Array, ids: Array, axis_name: AxisName) -> Array:
    """Gathers the table, and takes rows of it, which says nothing of ids that are none."""
    table = collectives.cast_varying(table, names(axis_name))
    whole = collectives.all_gather_invariant(table.astype(accumulator(table)), names(axis_name), tiled=True)
    return whole[_ids(ids)].astype(table.dtype)


@right("embedding_lookup")
def embedding_filled(table: Array, ids: Array, axis_name: AxisName) -> Array:
    """The gathered table gets a row of zeros behind its last one, to which all others are sent."""
    whole = collectives.all_gather_invariant(
        collectives.cast_varying(table, names(axis_name)), names(axis_name), tiled=True
    )
    longer = jnp.pad(whole.astype(accumulator(whole)), ((0, 1), (0, 0)))
    ids, v = _ids(ids), whole.shape[0]
    return longer[jnp.where((ids >= 0) & (ids < v), ids, v)].astype(table.dtype)


@right("embedding_lookup")
def embedding_from_the_owner(table: Array, ids: Array, axis_name: AxisName) -> Array:
    """All look up modulo their rows; of the answers, that of the owner is taken."""
    axes = names(axis_name)
    table, ids = collectives.cast_varying(table, axes), _ids(ids)
    n, p = table.shape[0], lax.axis_size(axes)
    answers = jnp.take(table.astype(accumulator(table)), ids % n, axis=0, mode="clip")
    all_of_them = collectives.all_gather_invariant(answers, axes)
    owner = jnp.where((ids >= 0) & (ids < p * n), ids // n, p)
    mine = owner == jnp.arange(p).reshape(p, *(1,) * ids.ndim)
    return jnp.sum(jnp.where(mine[..., None], all_of_them, 0), axis=0).astype(table.dtype)
