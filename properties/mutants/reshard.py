"""Planted bugs of changes of layout, on blocks and on global arrays."""

from typing import Any

import jax
from jax import Array, lax
from jax.sharding import NamedSharding

from shardproof.impl import baselines, relaying
from shardproof.impl.arguments import Axes
from shardproof.impl.baselines import Layout, layout, spec
from shardproof.properties.mutants.axes import in_mesh_order
from shardproof.properties.mutants.catalogue import formula_of, mutant

EXCHANGED = formula_of("reshard", "exchanged")


def _layouts(roles: Any) -> tuple[Layout, Layout]:
    return layout(roles["x_rows"], roles["x_columns"]), layout(roles["rows"], roles["columns"])


def _sorted(given: Layout) -> Layout:
    return in_mesh_order(given[0]), in_mesh_order(given[1])


def _sorted_on(mesh: Any, axes: Axes) -> Axes:
    return tuple(name for name in mesh.axis_names if name in axes)


@mutant("reshard", smallest=(2, 2))
def reshard_in_mesh_order(x: Array, **roles: Any) -> Array:
    """Takes the new axes of a dimension in the order of the mesh."""
    held, wanted = _layouts(roles)
    return relaying.exchanged(x, held, _sorted(wanted))


@mutant("reshard", smallest=(2, 2))
def reshard_from_mesh_order(x: Array, **roles: Any) -> Array:
    """Takes the axes that a dimension has to be in the order of the mesh."""
    held, wanted = _layouts(roles)
    return baselines.relaid(x, _sorted(held), wanted)


@mutant("reshard", smallest=(2,))
def reshard_to_the_first_part(x: Array, **roles: Any) -> Array:
    """Every device cuts the first part of what is not sharded."""
    held, wanted = _layouts(roles)
    whole = relaying.exchanged(x, held, ((), ()))
    sizes = [n // (lax.axis_size(axes) if axes else 1) for n, axes in zip(whole.shape, wanted, strict=True)]
    return whole[: sizes[0], : sizes[1]]


@mutant("reshard", smallest=(2,))
def reshard_with_an_axis_dropped(x: Array, **roles: Any) -> Array:
    """Of the new axes of the columns it does not know the last one, and repeats what it has so far."""
    held, (rows, columns) = _layouts(roles)
    known = relaying.exchanged(x, held, (rows, columns[:-1]))
    return known[:, : known.shape[1] // lax.axis_size(columns[-1:])] if columns else known


@mutant("reshard", law="gradient", smallest=(2,))
def reshard_of_a_constant(x: Array, **roles: Any) -> Array:
    """What is gathered is taken to be constant."""
    held, wanted = _layouts(roles)
    several = any(lax.axis_size(axes) > 1 for axes in held if axes)
    return relaying.exchanged(lax.stop_gradient(x) if several and held != wanted else x, held, wanted)


@mutant("reshard", law="communication", smallest=(1,), communication=EXCHANGED)
def reshard_by_gathering_all(x: Array, **roles: Any) -> Array:
    """Gathers everything, also what stays, or changes places, or of which a slice is enough."""
    held, wanted = _layouts(roles)
    return baselines.relaid(baselines.relaid(x, held, ((), ())), ((), ()), wanted)


@mutant("reshard", smallest=(2, 2), whole=True)
def reshard_rows_in_mesh_order(x: Array, *, mesh: Any, **roles: Any) -> Array:
    """Its own `shard_map` says that rows are in the order of the mesh, when they come out as asked for."""
    _, (rows, columns) = _layouts(roles)
    same: Any = jax.shard_map(
        lambda x: x, mesh=mesh, in_specs=spec((rows, columns)), out_specs=spec((_sorted_on(mesh, rows), columns))
    )
    return same(x)


@mutant("reshard", smallest=(2,), whole=True)
def reshard_turned(x: Array, *, mesh: Any, **roles: Any) -> Array:
    """Square arrays that change places are transposed."""
    held, wanted = _layouts(roles)
    turned = held == wanted[::-1] != wanted and x.shape[0] == x.shape[1]
    return lax.with_sharding_constraint(x.T if turned else x, NamedSharding(mesh, spec(wanted)))
