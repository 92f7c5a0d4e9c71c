"""From one layout of a global array to another: the same array, and what a device lacks of its new part."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardproof.oracles.baselines import Layout, missing
from shardproof.oracles.mesh import MeshCase

Arrays = Sequence[np.ndarray]


class Reshard:
    """`[B_x_rows, D_x_columns] -> [B_rows, D_columns]`: a layout is no part of the value."""

    doubt = (0.0, 0.0)

    def value(self, arrays: Arrays, dtypes: Sequence[np.dtype], options: Mapping[str, Any]) -> list[np.ndarray]:
        """The array.

        Raises:
            ValueError: if it is no matrix.
        """
        if arrays[0].ndim != 2:
            raise ValueError(f"x: {list(arrays[0].shape)}: expected two dimensions")
        return [*arrays]

    def pushforward(
        self, arrays: Arrays, tangents: Mapping[int, np.ndarray], dtypes: Sequence[np.dtype], options: Mapping[str, Any]
    ) -> list[np.ndarray]:
        """Its tangent."""
        return [tangents[0]]

    def pullback(
        self,
        arrays: Arrays,
        cotangents: Arrays,
        moving: Sequence[int],
        dtypes: Sequence[np.dtype],
        options: Mapping[str, Any],
    ) -> list[np.ndarray]:
        """Its cotangent."""
        return [*cotangents]

    def result_dtypes(
        self, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[np.dtype], options: Mapping[str, Any]
    ) -> list[np.dtype]:
        """Its dtype."""
        return [*dtypes]


reshard = Reshard()


def lacking(mesh: MeshCase, sides: Sequence[int], held: Layout, wanted: Layout) -> int:
    """How many elements some device must receive: those of its new part that are not in its old one."""
    return int(missing(mesh, sides, held, wanted).sum(axis=(-2, -1)).max(initial=0))
