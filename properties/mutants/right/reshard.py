"""Right forms of changes of layout."""

from typing import Any

import jax
from jax import Array

from shardproof.impl import relaying
from shardproof.impl.baselines import layout, spec
from shardproof.properties.mutants.right.catalogue import right


@right("reshard")
def reshard_dimension_by_dimension(x: Array, **roles: Any) -> Array:
    """Gathers everything, then takes the new axes one dimension at a time, columns first."""
    held, (rows, columns) = layout(roles["x_rows"], roles["x_columns"]), layout(roles["rows"], roles["columns"])
    for step in (((), ()), ((), columns), (rows, columns)):
        x, held = relaying.exchanged(x, held, step), step
    return x


@right("reshard", whole=True)
def reshard_by_a_function_of_blocks(x: Array, *, mesh: Any, **roles: Any) -> Array:
    """A `shard_map` that does nothing: what it takes is laid out as it must be."""
    wanted = spec(layout(roles["rows"], roles["columns"]))
    same: Any = jax.shard_map(lambda x: x, mesh=mesh, in_specs=wanted, out_specs=wanted)
    return same(x)
