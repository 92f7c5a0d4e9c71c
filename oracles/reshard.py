"""From one layout of a global array to another: the same array, and what a device lacks of its new part."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardproof.oracles.baselines import Layout, missing
from shardproof.oracles.communication import NOTHING, Cost, built_in, built_in_backward, summed_replicas
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


def lacking(mesh: MeshCase, sides: tuple[int, int], held: Layout, wanted: Layout) -> int:
    """How many elements some device must receive: those of its new part that are not in its old one."""
    return int(missing(mesh, sides, held, wanted).sum(axis=(-2, -1)).max(initial=0))


def exchanged_cost(
    mesh: MeshCase, sides: tuple[int, int], held: Layout, wanted: Layout, *, bits: int = 8, backward: bool = False
) -> Cost:
    """Bytes by the axes that a dimension gives up and gains: its old and its new ones, but for those both begin with.

    A tuple that one dimension gives up, and is all that another gains, which gives up none, is exchanged: an all-to-all
    of the block. What is given up besides is gathered: p - 1 blocks to each. To gain an axis costs nothing: its blocks
    are cut, before anything is sent if the dimension gives up none, and nobody else gives up that axis.
    Backward, an exchange is an exchange, of what was gathered to all a part is cut, and the cotangents of all parts of
    what was cut are added up.
    """
    own = [side // mesh.axis_size(axes) for side, axes in zip(sides, held, strict=True)]
    kept = [max(k for k in range(len(a) + 1) if a[:k] == b[:k]) for a, b in zip(held, wanted, strict=True)]
    left = [axes[k:] for axes, k in zip(held, kept, strict=True)]
    new = [axes[k:] for axes, k in zip(wanted, kept, strict=True)]
    cost, given_up = NOTHING, {*left[0], *left[1]}

    def cut(dimension: int) -> Cost:
        before, axes = math.prod(own), new[dimension]
        own[dimension] //= mesh.axis_size(axes)
        new[dimension] = ()
        return summed_replicas(before, bits=bits) if backward and axes else NOTHING

    for dimension in (0, 1):
        if not left[dimension] and not given_up & {*new[dimension]}:
            cost += cut(dimension)
    for source, target in ((0, 1), (1, 0)):
        if left[source] and left[source] == new[target] and not left[target]:
            p, n = mesh.axis_size(left[source]), math.prod(own)
            one = built_in_backward("all_to_all", p, n, bits=bits) if backward else built_in("all_to_all", n, bits=bits)
            cost += one
            own[source], own[target] = own[source] * p, own[target] // p
            left[source] = new[target] = ()
    for dimension in (0, 1):
        if left[dimension]:
            cost += NOTHING if backward else built_in("all_gather", math.prod(own), bits=bits)
            own[dimension] *= mesh.axis_size(left[dimension])
    return cost + cut(0) + cut(1)
