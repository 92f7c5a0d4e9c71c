"""Process groups: the devices among which a collective exchanges, by their numbers in mesh order."""

import functools
import math
from collections.abc import Sequence

import numpy as np

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.simulate.errors import InvalidGroups

Groups = Sequence[Sequence[int]] | None
"""`axis_index_groups`: a partition of the participants over an axis tuple; None: all of them together."""


Sizes = tuple[tuple[str, int], ...]
"""The axes of a mesh with their sizes, in mesh order."""


def numbering(mesh: Sizes, axes: Sequence[str]) -> np.ndarray:
    """Every device's number along an axis tuple, the last name varying fastest: int64 `[devices]`."""
    sizes = [size for _, size in mesh]
    coordinates = np.indices(sizes).reshape(len(sizes), math.prod(sizes))
    number = np.zeros(math.prod(sizes), np.int64)
    for wanted in axes:
        for (name, size), coordinate in zip(mesh, coordinates, strict=True):
            if name == wanted:
                number = number * size + coordinate
    return number


@functools.lru_cache(maxsize=256)
def _participants(mesh: Sizes, axes: tuple[str, ...]) -> np.ndarray:
    """All participants over an axis tuple, by number: `[copies, participants]`, the copies in mesh order."""
    others = [name for name, _ in mesh if name not in axes]
    p = math.prod(size for name, size in mesh if name in axes)
    devices = np.lexsort((numbering(mesh, axes), numbering(mesh, others))).reshape(-1, p)
    devices.flags.writeable = False
    return devices


def process_groups(mesh: MeshCase, axes: Sequence[str], groups: Groups = None) -> list[np.ndarray]:
    """The devices of every process group, in the order of their numbers along `axes`: `[copies, participants]` each.

    One array holds the same group on all positions along the other axes of the mesh, in mesh order. There are several
    if `groups` divides the participants.

    Raises:
        InvalidGroups: if `groups` is no partition of the participants.
    """
    devices = _participants(tuple(mesh.shape.items()), tuple(axes))
    if groups is None:
        return [devices]
    p = devices.shape[1]
    if sorted(i for group in groups for i in group) != list(range(p)) or not all(map(len, groups)):
        raise InvalidGroups(f"groups={groups}: expected a partition of range({p}), on the mesh {mesh}")
    return [devices[:, list(group)] for group in groups]


def device_name(mesh: MeshCase, device: int | Sequence[int]) -> str:
    """A device, given by its number or its coordinates: `(dp=0, tp=1)`."""
    at = np.unravel_index(device, mesh.sizes) if isinstance(device, int | np.integer) else device
    return f"({', '.join(f'{name}={i}' for name, i in zip(mesh.axis_names, at, strict=True))})"
