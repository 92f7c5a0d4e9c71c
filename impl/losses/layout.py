"""How devices share the parameters and the batch of a model, in terms of what axes are for."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from shardproof.impl.arguments import AxisName, as_axes

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


def spec(roles: Roles, axes: Mapping[str, Axes]) -> PartitionSpec:
    """The PartitionSpec of dimensions that are sharded by these roles."""
    return PartitionSpec(*(tuple(a for role in some for a in axes[role]) or None for some in roles))
