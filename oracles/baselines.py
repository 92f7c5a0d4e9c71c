"""Matrix products of global arrays in any layout, and how many elements a device lacks to compute its part.

Arrays are whole, `[B, D]`, `[D, F]` and so on. A layout has the mesh axes that shard each dimension.
"""

import math
from collections.abc import Sequence

import numpy as np

from shardproof.oracles.dtypes import wide
from shardproof.oracles.layout import shard
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.whole import Arrays, Dtypes, OfWholes, Options, Tangents

Axes = tuple[str, ...]
Sides = tuple[int, ...]
Layout = tuple[Axes, Axes]
"""The axes that shard the rows of a matrix, and those that shard its columns."""


class Matmuls(OfWholes):
    """The product of matrices, one after the other: `A W`, `X W_in W_out`, or `A` alone."""

    def value(self, arrays: Arrays, dtypes: Dtypes, options: Options) -> list[np.ndarray]:
        """All matrices, multiplied."""
        return [self.product(arrays)]

    def pushforward(self, arrays: Arrays, tangents: Tangents, dtypes: Dtypes, options: Options) -> list[np.ndarray]:
        """Every matrix in turn is its tangent, and the products are added up."""
        return [sum(self.product([*arrays[:i], t, *arrays[i + 1 :]]) for i, t in tangents.items())]  # type: ignore[list-item]

    def pullback(
        self, arrays: Arrays, cotangents: Arrays, moving: Sequence[int], dtypes: Dtypes, options: Options
    ) -> list[np.ndarray]:
        """The cotangent between what is in front of a matrix and what is behind it, both transposed."""
        (ct,) = cotangents
        return [
            self.product([*[a.T for a in reversed(arrays[:i])], ct, *[a.T for a in reversed(arrays[i + 1 :])]])
            for i in moving
        ]

    @staticmethod
    def product(arrays: Arrays) -> np.ndarray:
        """Element (i, j) is the sum over k of the products of the elements (i, k) and (k, j)."""
        result, *others = (a.astype(wide(a.dtype)) for a in arrays)
        with np.errstate(invalid="ignore", over="ignore"):  # what is infinite, times zero, or of both signs
            for other in others:
                result = result @ other
        return result


matmul = two_matmuls = Matmuls()
reshard = Matmuls()
"""One matrix: a layout is no part of the value."""


def missing_elements(mesh: MeshCase, sides: Sequence[int], held: Layout, used: Layout) -> np.ndarray:
    """The elements of a matrix that each device uses and does not hold: bool `[*mesh.sizes, *sides]`."""
    numbers = np.arange(math.prod(sides)).reshape(sides)

    def part(layout: Layout) -> np.ndarray:
        found = np.zeros((mesh.size, numbers.size), bool)
        np.put_along_axis(found, shard(numbers, mesh, layout).reshape(mesh.size, -1), True, axis=1)
        return found.reshape(*mesh.sizes, *sides)

    return part(used) & ~part(held)


def fewest_received(mesh: MeshCase, sides: Sides, layouts: Sequence[Layout], result: Layout) -> int:
    """The numbers that some device must receive at least to hold its part of a product, of two matrices or more.

    Its part `[b, f]` of the result depends on b rows of the first matrix. If k numbers of such a row are elsewhere, and
    all else is known, the row of the result is a linear function of these k, in general of rank min(k, f, the sides in
    between), and so it must receive as many numbers, be it those k, or sums of them. The same holds for the columns of
    the last matrix. A device needs all of the matrices in between: one number at least, if any is elsewhere.
    """
    b, *inner, f = sides
    own_rows, own_columns = b // mesh.axis_size(result[0]), f // mesh.axis_size(result[1])
    of_rows = missing_elements(mesh, (b, inner[0]), layouts[0], (result[0], ())).sum(axis=-1)
    of_columns = missing_elements(mesh, (inner[-1], f), layouts[-1], ((), result[1])).sum(axis=-2)
    by_rows = np.minimum(of_rows, min([own_columns, *inner[1:]])).sum(axis=-1)
    by_columns = np.minimum(of_columns, min([own_rows, *inner[:-1]])).sum(axis=-1)
    between = zip(inner[:-1], inner[1:], layouts[1:-1], strict=True)
    some = any(missing_elements(mesh, (rows, columns), held, ((), ())).any() for rows, columns, held in between)
    return max(int(some), int(np.maximum(by_rows, by_columns).max(initial=0)))
