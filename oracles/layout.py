"""Layouts: the part of a global array that each device holds under a PartitionSpec.

A spec is read entry by entry, one per dimension: `None` leaves the dimension whole, a name splits
it over that mesh axis, and a tuple of names splits it over all of them, the last name varying
fastest. Mesh axes that no entry names hold replicas.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Shaped

from shardproof.oracles.dtypes import round_to, wide
from shardproof.oracles.mesh import MeshCase, as_axes

Spec = Sequence[str | Sequence[str] | None] | Any
"""One entry per dimension: a PartitionSpec, or tuples of axis names."""

Entries = tuple[tuple[str, ...], ...]
"""The same, with the mesh axes that split each dimension, in their order."""


Blocks = Shaped[np.ndarray, "..."]
Axes = str | Iterable[str]
Operands = Sequence[Blocks]
Tangents = Sequence[Any]
"""Blocks, and None for operands that have no gradient."""


class ReplicaMismatch(ValueError):
    """Devices that a layout says hold the same block hold different ones."""


def spec_entries(spec: Spec, rank: int, mesh: MeshCase) -> Entries:
    """The mesh axes that split each of `rank` dimensions: `P("dp", None)` gives `(("dp",), ())`.

    Raises:
        ValueError: if `spec` has too many entries, names an axis twice, or one that is not the mesh's.
    """
    entries = tuple(() if entry is None else as_axes(entry) for entry in spec)
    names = [name for entry in entries for name in entry]
    if len(entries) > rank:
        raise ValueError(f"spec={entries}: expected at most {rank} entries, one per dimension, on the mesh {mesh}")
    if len(set(names)) != len(names):
        raise ValueError(f"spec={entries}: expected each mesh axis at most once, on the mesh {mesh}")
    for name in names:
        if name not in mesh.axis_names:
            raise ValueError(f"spec={entries}: {name!r} is not an axis of the mesh {mesh}")
    return entries + ((),) * (rank - len(entries))


def sharded_axes(spec: Spec) -> frozenset[str]:
    """The mesh axes over which `spec` splits something: those along which the blocks vary."""
    return frozenset(name for entry in spec if entry is not None for name in as_axes(entry))


def block_shape(shape: Sequence[int], mesh: MeshCase, spec: Spec) -> tuple[int, ...]:
    """Every device's block of an array; ValueError if an axis is not the mesh's, or a dimension does not divide."""
    result = []
    for dimension, (size, axes) in enumerate(zip(shape, spec_entries(spec, len(shape), mesh), strict=True)):
        parts = mesh.axis_size(axes)
        if size % parts:
            raise ValueError(
                f"shape={tuple(shape)}: dimension {dimension} of size {size} does not divide into the "
                f"{parts} parts of {axes} on the mesh {mesh}"
            )
        result.append(size // parts)
    return tuple(result)


def shard(array: Shaped[np.ndarray, "..."], mesh: MeshCase, spec: Spec) -> Shaped[np.ndarray, "..."]:
    """The block of every device, `[*mesh.sizes, *block]`; ValueError if `spec` does not fit the array or the mesh."""
    entries = spec_entries(spec, array.ndim, mesh)
    blocks = block_shape(array.shape, mesh, entries)
    split_shape: list[int] = []
    position: dict[str, int] = {}
    block_dimensions: list[int] = []
    for size, axes in zip(blocks, entries, strict=True):
        for name in axes:
            position[name] = len(split_shape)
            split_shape.append(mesh.shape[name])
        block_dimensions.append(len(split_shape))
        split_shape.append(size)
    named = [position[name] for name in mesh.axis_names if name in position]
    leading = [mesh.shape[name] if name in position else 1 for name in mesh.axis_names]
    parts = array.reshape(split_shape).transpose(*named, *block_dimensions)
    return np.broadcast_to(parts.reshape(*leading, *blocks), (*mesh.sizes, *blocks))


def unshard(blocks: Shaped[np.ndarray, "..."], mesh: MeshCase, spec: Spec) -> Shaped[np.ndarray, "..."]:
    """The global array that blocks `[*mesh.sizes, *block]` make up; replicas must agree.

    Raises:
        ValueError: if `spec` does not fit the blocks or the mesh.
        ReplicaMismatch: if devices that should hold the same block do not.
    """
    if blocks.shape[: len(mesh.sizes)] != mesh.sizes:
        raise ValueError(f"blocks.shape={blocks.shape}: expected it to begin with {mesh.sizes}, the mesh {mesh}")
    entries = spec_entries(spec, blocks.ndim - len(mesh.sizes), mesh)
    sizes = blocks.shape[len(mesh.sizes) :]
    shape = tuple(n * mesh.axis_size(axes) for n, axes in zip(sizes, entries, strict=True))
    check_replicas(blocks, mesh, sharded_axes(entries))
    one_replica = blocks[tuple(slice(None) if n in sharded_axes(entries) else slice(1) for n in mesh.axis_names)]
    order: list[int] = []
    for dimension, axes in enumerate(entries):
        order += [mesh.axis_names.index(name) for name in axes]
        order.append(len(mesh.sizes) + dimension)
    unnamed = [i for i, name in enumerate(mesh.axis_names) if name not in sharded_axes(entries)]
    return one_replica.transpose(*unnamed, *order).reshape(shape)


def enter(cotangent: Shaped[np.ndarray, "..."], mesh: MeshCase, spec: Spec) -> Shaped[np.ndarray, "..."]:
    """The transpose of assembling a result: each shard's cotangent goes to its first replica only."""
    blocks = shard(cotangent, mesh, spec).copy()
    for dimension, name in enumerate(mesh.axis_names):
        if name not in sharded_axes(spec):
            index = [slice(None)] * blocks.ndim
            index[dimension] = slice(1, None)
            blocks[tuple(index)] = np.zeros((), blocks.dtype)
    return blocks


def leave(blocks: Shaped[np.ndarray, "..."], mesh: MeshCase, spec: Spec) -> Shaped[np.ndarray, "..."]:
    """The transpose of sharding an operand: the cotangents of replicas are added."""
    replicated = tuple(i for i, name in enumerate(mesh.axis_names) if name not in sharded_axes(spec))
    with np.errstate(invalid="ignore", over="ignore"):
        exact = blocks.astype(wide(blocks.dtype)).sum(axis=replicated, keepdims=True)
    total = round_to(exact, blocks.dtype)
    return unshard(np.broadcast_to(total, blocks.shape), mesh, spec)


def check_replicas(blocks: Shaped[np.ndarray, "..."], mesh: MeshCase, varying: Iterable[str]) -> None:
    """Raises ReplicaMismatch, with two devices, unless blocks are equal along axes outside `varying`, NaN for NaN."""
    varying = frozenset(varying)
    first = blocks[tuple(slice(None) if name in varying else slice(1) for name in mesh.axis_names)]
    same = nan_equal(blocks, np.broadcast_to(first, blocks.shape))
    per_device = same.reshape(*mesh.sizes, -1).all(axis=-1)
    if not per_device.all():
        where = tuple(int(i) for i in np.argwhere(~per_device)[0])
        origin = tuple(i if name in varying else 0 for i, name in zip(where, mesh.axis_names, strict=True))
        invariant = [name for name in mesh.axis_names if name not in varying]
        raise ReplicaMismatch(
            f"blocks differ along {tuple(invariant)}, where they should be equal: device "
            f"{device_name(mesh, where)} does not hold what {device_name(mesh, origin)} holds"
        )


def nan_equal(left: Shaped[np.ndarray, "..."], right: Shaped[np.ndarray, "..."]) -> np.ndarray:
    """Elementwise equality in which a NaN equals a NaN; the two zeros are equal, as everywhere in arithmetic."""
    with np.errstate(invalid="ignore"):
        return np.asarray((left == right) | ((left != left) & (right != right)))


def device_name(mesh: MeshCase, coordinates: Sequence[int]) -> str:
    """A device by its coordinates: `(dp=0, tp=1)`."""
    return f"({', '.join(f'{n}={i}' for n, i in zip(mesh.axis_names, coordinates, strict=True))})"


def logical_index(mesh: MeshCase, coordinates: Sequence[int], axis_name: str | Iterable[str]) -> int:
    """The position of a device along an axis tuple, the last name varying fastest."""
    at = dict(zip(mesh.axis_names, coordinates, strict=True))
    axes = as_axes(axis_name)
    return sum(at[name] * math.prod(mesh.shape[n] for n in axes[i + 1 :]) for i, name in enumerate(axes))


def participants_first(blocks: Blocks, mesh: MeshCase, axes: Axes) -> np.ndarray:
    """Blocks as `[p, others, *block]`: by the logical index over `axes`, and by all remaining devices."""
    order = _axes_first(mesh, axes)
    rank, p = len(mesh.sizes), mesh.axis_size(axes)
    moved = blocks.transpose(*order, *range(rank, blocks.ndim))
    return moved.reshape(p, mesh.size // p, *blocks.shape[rank:])


def mesh_first(participants: np.ndarray, mesh: MeshCase, axes: Axes) -> Blocks:
    """The inverse of `participants_first`."""
    order = _axes_first(mesh, axes)
    blocks = participants.reshape(*(mesh.sizes[i] for i in order), *participants.shape[2:])
    return blocks.transpose(*np.argsort(order), *range(len(order), blocks.ndim))


def _axes_first(mesh: MeshCase, axes: Axes) -> list[int]:
    names = as_axes(axes)
    return [mesh.axis_names.index(name) for name in (*names, *(n for n in mesh.axis_names if n not in names))]
