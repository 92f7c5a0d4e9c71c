"""Planted bugs of a change of layout, on automatic axes, and right ones that look odd."""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.resharding import Resharding

Change = Callable[[Any, PartitionSpec, Any], Any]


def _at(x: Any, spec: PartitionSpec, mesh: Any) -> Any:
    return lax.with_sharding_constraint(x, NamedSharding(mesh, spec))


def gathers_everything(x: Any, spec: PartitionSpec, mesh: Any) -> Any:
    """Every device has the whole array first, also where a slice of what it has is enough."""
    return _at(lax.optimization_barrier(_at(x, PartitionSpec(), mesh)), spec, mesh)


def in_mesh_order(x: Any, spec: PartitionSpec, mesh: Any) -> Any:
    """Devices hold the parts that they would in the order of the mesh's own axes."""
    entries = [(entry,) if isinstance(entry, str) else tuple(entry or ()) for entry in spec]
    in_order = PartitionSpec(*(tuple(n for n in mesh.axis_names if n in entry) or None for entry in entries))
    moved: Any = jax.shard_map(lambda block: block, mesh=mesh, in_specs=in_order, out_specs=spec)
    return moved(x)


def stays_where_it_is(x: Any, spec: PartitionSpec, mesh: Any) -> Any:
    """The values are right, and every device keeps all of them."""
    return _at(x, PartitionSpec(), mesh)


def as_floats(x: Any, spec: PartitionSpec, mesh: Any) -> Any:
    """Negated twice, and asked for twice: the same, at the same cost."""
    return _at(-_at(-x, spec, mesh), spec, mesh)


TWO, FOUR = MeshCase(("x",), (2,)), MeshCase(("x", "y"), (2, 2))
WRONG: dict[str, tuple[Change, Resharding, str]] = {
    "gathers_everything": (gathers_everything, Resharding(TWO, (4,), (("x",),), (("x",),)), "communication"),
    "gathers_for_a_slice": (gathers_everything, Resharding(FOUR, (4,), (("x",),), (("x", "y"),)), "communication"),
    "gathers_more_than_there_is": (
        lambda x, spec, mesh: gathers_everything(-gathers_everything(-x, spec, mesh), spec, mesh),
        Resharding(FOUR, (4, 4), (("x",), ("y",)), (("y",), ("x",))),
        "communication",
    ),
    "in_mesh_order": (in_mesh_order, Resharding(FOUR, (8,), ((),), (("y", "x"),)), "values"),
    "stays_where_it_is": (stays_where_it_is, Resharding(TWO, (4,), ((),), (("x",),)), "type"),
}
"""By name: the function, the smallest change that it gets wrong, and the kind of what is wrong."""

RIGHT: dict[str, Change] = {"as_floats": as_floats}
CHANGES = (
    Resharding(TWO, (4,), ((),), (("x",),)),
    Resharding(TWO, (4, 2), (("x",), ()), ((), ("x",))),
    Resharding(FOUR, (8,), (("x", "y"),), (("y", "x"),)),
)
"""What the right ones are asked for."""
