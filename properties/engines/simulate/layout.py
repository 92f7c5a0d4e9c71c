"""Layouts: how `shard_map` divides global arrays into blocks, one mesh axis after the other, and joins them again."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.simulate.errors import UnequalReplicas
from shardproof.properties.engines.simulate.groups import device_name

Entries = Sequence[Sequence[str]]
"""The mesh axes that split each dimension, the last varying fastest."""


def splits(mesh: MeshCase, entries: Entries) -> Iterator[tuple[int | None, int, int]]:
    """For each mesh axis in mesh order: the dimension that it splits, its size, and how many parts stay outside of it.

    Those are of the axes that stand before it in its dimension's entry, and have not been taken out: they come after it
    in the mesh. An axis that splits nothing has no dimension.
    """
    for number, name in enumerate(mesh.axis_names):
        later = mesh.axis_names[number + 1 :]
        at = next((d for d, names in enumerate(entries) if name in names), None)
        outside = [n for n in ([] if at is None else entries[at][: list(entries[at]).index(name)]) if n in later]
        yield at, mesh.shape[name], math.prod(mesh.shape[n] for n in outside)


def divide(x: np.ndarray, mesh: MeshCase, entries: Entries) -> np.ndarray:
    """`[*global]` as `[*lead, *block]`, with one leading dimension per mesh axis: 1 for one that splits nothing."""
    for number, (at, size, outside) in enumerate(splits(mesh, entries)):
        if at is None:
            x = np.expand_dims(x, number)
            continue
        at += number
        inside = x.shape[at] // (size * outside)
        x = np.moveaxis(x.reshape(*x.shape[:at], outside, size, inside, *x.shape[at + 1 :]), at + 1, number)
        x = x.reshape(*x.shape[: at + 1], outside * inside, *x.shape[at + 3 :])
    return x


def join(blocks: np.ndarray, mesh: MeshCase, entries: Entries) -> np.ndarray:
    """`[*lead, *block]` as `[*global]`: what `divide` took apart; `lead` is 1 along axes that split nothing."""
    for number, (at, size, outside) in reversed([*enumerate(splits(mesh, entries))]):
        if at is None:
            blocks = np.squeeze(blocks, number)
            continue
        at += number
        inside = blocks.shape[at + 1] // outside
        blocks = blocks.reshape(*blocks.shape[: at + 1], outside, inside, *blocks.shape[at + 2 :])
        blocks = np.moveaxis(blocks, number, at + 1)
        blocks = blocks.reshape(*blocks.shape[:at], outside * size * inside, *blocks.shape[at + 3 :])
    return blocks


def first_replica(blocks: np.ndarray, mesh: MeshCase, dimension: int) -> np.ndarray:
    """Blocks `[*lead, *block]` of the first device along a mesh axis, of which all hold the same.

    Raises:
        UnequalReplicas: naming the first two devices that do not.
    """
    if blocks.shape[dimension] == 1:
        return blocks
    first = blocks.take([0], axis=dimension)
    rank = len(mesh.sizes)
    same = nan_equal(blocks, first).all(axis=tuple(range(rank, blocks.ndim)))
    if not same.all():
        there = [int(i) for i in np.argwhere(~same)[0]]
        here = [0 if i == dimension else position for i, position in enumerate(there)]
        raise UnequalReplicas(
            f"blocks differ along {mesh.axis_names[dimension]}, where they should be equal: device "
            f"{device_name(mesh, there)} does not hold what {device_name(mesh, here)} holds"
        )
    return first


def nan_equal(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Elementwise equality in which a NaN equals a NaN."""
    return np.asarray((one == other) | ((one != one) & (other != other)))
