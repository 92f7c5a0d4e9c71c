"""Planted bugs of changes of layout, on blocks and on global arrays."""

from typing import Any

from jax import Array, lax
from jax.sharding import NamedSharding

from shardproof.impl.reshard import Layout, layout, reshard_block, spec
from shardproof.properties.mutants.axes import in_mesh_order
from shardproof.properties.mutants.catalogue import mutant


def _layouts(roles: Any) -> tuple[Layout, Layout]:
    return layout(roles["x_rows"], roles["x_columns"]), layout(roles["rows"], roles["columns"])


def _sorted(given: Layout) -> Layout:
    return in_mesh_order(given[0]), in_mesh_order(given[1])


@mutant("reshard", smallest=(2, 2))
def reshard_from_mesh_order(x: Array, **roles: Any) -> Array:
    """Takes the axes that a dimension has to be in the order of the mesh."""
    held, wanted = _layouts(roles)
    return reshard_block(x, _sorted(held), wanted)


@mutant("reshard", smallest=(2,), whole=True)
def reshard_turned(x: Array, *, mesh: Any, **roles: Any) -> Array:
    """Square arrays that change places are transposed."""
    held, wanted = _layouts(roles)
    turned = held == wanted[::-1] != wanted and x.shape[0] == x.shape[1]
    return lax.with_sharding_constraint(x.T if turned else x, NamedSharding(mesh, spec(wanted)))
