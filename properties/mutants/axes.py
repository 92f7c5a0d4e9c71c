"""The mesh and axes that planted bugs run under, and blocks cast or passed along them."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from shardproof.impl.collectives import cast_varying, ring_shift, varying

AxisName = str | tuple[str, ...]


def names(axis_name: AxisName) -> tuple[str, ...]:
    """The axis tuple that `axis_name` stands for."""
    return (axis_name,) if isinstance(axis_name, str) else tuple(axis_name)


def mesh_names() -> tuple[str, ...]:
    """All axes of the mesh, in mesh order."""
    return tuple(jax.sharding.get_abstract_mesh().axis_names)


def mesh_size(axes: Iterable[str]) -> int:
    """How many devices the axes connect."""
    size = 1
    for name in axes:
        size *= jax.sharding.get_abstract_mesh().shape[name]
    return size


def in_mesh_order(axis_name: AxisName) -> tuple[str, ...]:
    """The axis tuple, sorted into mesh order; names that the mesh does not have are left to whoever uses them."""
    axes = names(axis_name)
    known = [name for name in mesh_names() if name in axes]
    return tuple(known) if len(known) == len(axes) else axes


def in_the_inverse_order(axis_name: AxisName) -> tuple[str, ...]:
    """The axis tuple by the inverse of its order in the mesh, which is another one of three axes in a circle alone."""
    axes = names(axis_name)
    ordered = in_mesh_order(axes)
    return tuple(ordered[axes.index(name)] for name in ordered)


def other_names(axis_name: AxisName) -> tuple[str, ...]:
    """The axes of the mesh that are not in the tuple, in mesh order."""
    return tuple(name for name in mesh_names() if name not in names(axis_name))


def widened(x: Array) -> Array:
    """In float32, or wider."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def passed(x: Array, axis_name: AxisName, steps: int, way: int = 1) -> list[Array]:
    """The block, and those that arrive in N steps round the ring."""
    held = [cast_varying(x, names(axis_name))]
    for _ in range(steps):
        held.append(ring_shift(held[-1], axis_name, offset=way))
    return held


def typed(axis_name: AxisName, *arrays: Array) -> Any:
    """The arrays, varying along these axes and all along which one of them varies."""
    return cast_varying(arrays, {*names(axis_name)}.union(*map(varying, arrays)))
