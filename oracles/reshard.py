"""A change of a matrix's layout, and which elements a device lacks for it."""

import math
from collections.abc import Sequence

import numpy as np

from shardproof.oracles.layout import shard
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.whole import Arrays, Dtypes, OfWholes, Options, Tangents

Layout = tuple[tuple[str, ...], tuple[str, ...]]
"""The axes that shard the rows of a matrix, and those that shard its columns."""


class Reshard(OfWholes):
    """A whole matrix as it is: a layout is no part of the value."""

    def value(self, arrays: Arrays, dtypes: Dtypes, options: Options) -> list[np.ndarray]:
        """The matrix."""
        return [arrays[0]]

    def pushforward(self, arrays: Arrays, tangents: Tangents, dtypes: Dtypes, options: Options) -> list[np.ndarray]:
        """Its tangent."""
        return [tangents[0]]

    def pullback(
        self, arrays: Arrays, cotangents: Arrays, moving: Sequence[int], dtypes: Dtypes, options: Options
    ) -> list[np.ndarray]:
        """The cotangent of the result."""
        return [*cotangents]


reshard = Reshard()


def missing_elements(mesh: MeshCase, sides: Sequence[int], held: Layout, used: Layout) -> np.ndarray:
    """The elements of a matrix that each device uses and does not hold: bool `[*mesh.sizes, *sides]`."""
    numbers = np.arange(math.prod(sides)).reshape(sides)

    def part(layout: Layout) -> np.ndarray:
        found = np.zeros((mesh.size, numbers.size), bool)
        np.put_along_axis(found, shard(numbers, mesh, layout).reshape(mesh.size, -1), True, axis=1)
        return found.reshape(*mesh.sizes, *sides)

    return part(used) & ~part(held)
