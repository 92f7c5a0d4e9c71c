"""How devices share the parameters and the batch of a model, in terms of what axes are for."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from shardproof.impl.arguments import AxisName

Axes = tuple[str, ...]
Roles = tuple[Axes, ...]
"""Of every dimension, the roles (`data`, `model`) whose axes shard it, the first varying slowest."""

ROLES = ("data", "model")


@dataclass(frozen=True)
class Layout:
    """How arrays are laid out, each dimension by the roles that shard it.

    Arguments:
        inputs: `[B, D_0]`.
        weights: `[D_in, D_out]`, of every layer.
        biases: `[D_out]`, of every layer.
        targets: `[B, D_n]`.
    """

    inputs: Roles = ((), ())
    weights: Roles = ((), ())
    biases: Roles = ((),)
    targets: Roles = ((), ())

    def __post_init__(self) -> None:
        for field in fields(self):
            named = [role for roles in getattr(self, field.name) for role in roles]
            if len({*named}) != len(named) or not {*named} <= {*ROLES}:
                value = getattr(self, field.name)
                raise ValueError(f"Layout: {field.name}={value}: expected each of {ROLES} once at most")

    def specs(self, depth: int, *, data: AxisName, model: AxisName) -> tuple[list[Any], tuple[Any, Any]]:
        """The PartitionSpecs of `(params, batch)`, of a model of so many layers."""
        axes = dict(zip(ROLES, (as_axes(data), as_axes(model)), strict=True))
        layer = spec(self.weights, axes), spec(self.biases, axes)
        return [layer] * depth, (spec(self.inputs, axes), spec(self.targets, axes))

    def shardings(self, depth: int, *, mesh: Mesh | AbstractMesh, data: AxisName, model: AxisName) -> Any:
        """The shardings of `(params, batch)`, for `jax.device_put`."""
        specs = self.specs(depth, data=data, model=model)
        return jax.tree.map(lambda s: NamedSharding(mesh, s), specs, is_leaf=lambda s: isinstance(s, PartitionSpec))


def as_axes(name: AxisName) -> Axes:
    """An axis name, or several in a tuple or list, as a tuple; it may be of none."""
    return (name,) if isinstance(name, str) else tuple(name)


def spec(roles: Roles, axes: Mapping[str, Axes]) -> PartitionSpec:
    """The PartitionSpec of dimensions that are sharded by these roles."""
    return PartitionSpec(*(tuple(a for role in some for a in axes[role]) or None for some in roles))


def parts(entry: Any, mesh: Mesh | AbstractMesh) -> int:
    """Into how many parts an entry of a PartitionSpec divides a dimension."""
    return math.prod(mesh.shape[name] for name in as_axes(entry or ()))


def placed(tree: Any, specs: Any, mesh: Mesh | AbstractMesh) -> Any:
    """Reshards arrays on Explicit mesh axes to what `shard_map`'s in_specs require; on Auto axes it does nothing."""
    explicit = {name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Explicit}
    if not explicit:
        return tree

    def moved(x: Any, s: PartitionSpec) -> Any:
        return jax.reshard(x, NamedSharding(mesh, PartitionSpec(*(_among(entry, explicit) for entry in s))))

    return jax.tree.map(moved, tree, specs)


def _among(entry: Any, names: set[str]) -> Sequence[str] | None:
    return tuple(name for name in as_axes(entry or ()) if name in names) or None
