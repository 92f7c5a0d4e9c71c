"""From one layout of a global array to another: the same array, and what a device lacks of its new part."""

from collections.abc import Sequence

import numpy as np

from shardproof.oracles.baselines import Layout, missing
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.whole import Arrays, Dtypes, OfWholes, Options, Tangents


class Reshard(OfWholes):
    """`[B_x_rows, D_x_columns] -> [B_rows, D_columns]`: a layout is no part of the value."""

    def value(self, arrays: Arrays, dtypes: Dtypes, options: Options) -> list[np.ndarray]:
        """The array.

        Raises:
            ValueError: if it is no matrix.
        """
        if arrays[0].ndim != 2:
            raise ValueError(f"x: {list(arrays[0].shape)}: expected two dimensions")
        return [*arrays]

    def pushforward(self, arrays: Arrays, tangents: Tangents, dtypes: Dtypes, options: Options) -> list[np.ndarray]:
        """Its tangent."""
        return [tangents[0]]

    def pullback(
        self, arrays: Arrays, cotangents: Arrays, moving: Sequence[int], dtypes: Dtypes, options: Options
    ) -> list[np.ndarray]:
        """Its cotangent."""
        return [*cotangents]


reshard = Reshard()


def lacking(mesh: MeshCase, sides: Sequence[int], held: Layout, wanted: Layout) -> int:
    """How many elements some device must receive: those of its new part that are not in its old one."""
    return int(missing(mesh, sides, held, wanted).sum(axis=(-2, -1)).max(initial=0))
