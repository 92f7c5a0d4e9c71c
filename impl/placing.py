"""Global arrays on a mesh: checks of their layouts, and changes of layout."""

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from shardproof.impl.arguments import Axes, as_axes, refuse


def parts(entry: Any, mesh: Mesh | AbstractMesh) -> int:
    """The number of parts into which an entry of a PartitionSpec divides a dimension."""
    return math.prod(mesh.shape[name] for name in as_axes(entry or ()))


def place(tree: Any, specs: Any, mesh: Mesh | AbstractMesh) -> Any:
    """Reshards arrays on Explicit mesh axes to what `shard_map`'s in_specs require; on Auto axes it does nothing."""
    explicit = {name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Explicit}
    if not explicit:
        return tree

    def moved(x: Any, s: PartitionSpec) -> Any:
        return jax.reshard(x, NamedSharding(mesh, PartitionSpec(*(_among(entry, explicit) for entry in s))))

    return jax.tree.map(moved, tree, specs)


def _among(entry: Any, names: set[str]) -> Sequence[str] | None:
    return tuple(name for name in as_axes(entry or ()) if name in names) or None


def check_roles(function: str, mesh: Mesh | AbstractMesh, **roles: Axes) -> None:
    """The axes of every role are the mesh's, and of no other role."""
    taken: dict[str, str] = {}
    for role, axes in roles.items():
        if not {*axes} <= {*mesh.axis_names} or len({*axes}) != len(axes):
            refuse(function, role, axes, f"distinct axes out of {', '.join(mesh.axis_names)}")
        for axis in axes:
            if axis in taken:
                refuse(function, role, axes, f"none of the axes of {taken[axis]}={roles[taken[axis]]!r}")
            taken[axis] = role


def check_parts(function: str, argument: str, x: Any, layout: PartitionSpec, mesh: Mesh | AbstractMesh) -> None:
    """A layout divides all dimensions of an array, or of its shape and dtype."""
    for size, entry in zip(x.shape, layout, strict=True):
        if size % parts(entry, mesh):
            text = f"a size that the {parts(entry, mesh)} parts of {entry!r} divide ({size} is not)"
            refuse(function, argument, f"{x.dtype}{list(x.shape)}", text)
