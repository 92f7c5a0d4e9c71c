"""Matrix products of global arrays in any layout: what they are, and what a device lacks that they are computed from.

Arrays are whole, `[B, D]`, `[D, F]` and so on. A layout says of every dimension by which mesh axes it is sharded.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardproof.oracles.collectives import axis_index
from shardproof.oracles.communication import NOTHING, Cost, built_in, summed_replicas
from shardproof.oracles.dtypes import wide
from shardproof.oracles.mesh import MeshCase

Arrays = Sequence[np.ndarray]
Axes = tuple[str, ...]
Sides = tuple[int, ...]
Layout = tuple[Axes, Axes]
"""The axes that shard the rows of a matrix, and those that shard its columns."""


class Matmuls:
    """The product of matrices, one after the other: `A W`, or `X W_in W_out`."""

    doubt = (0.0, 0.0)

    def value(self, arrays: Arrays, dtypes: Sequence[np.dtype], options: Mapping[str, Any]) -> list[np.ndarray]:
        """All matrices, multiplied."""
        return [self.product(arrays)]

    def pushforward(
        self, arrays: Arrays, tangents: Mapping[int, np.ndarray], dtypes: Sequence[np.dtype], options: Mapping[str, Any]
    ) -> list[np.ndarray]:
        """Every matrix in turn is its tangent, and the products are added up."""
        return [sum(self.product([*arrays[:i], t, *arrays[i + 1 :]]) for i, t in tangents.items())]  # type: ignore[list-item]

    def pullback(
        self,
        arrays: Arrays,
        cotangents: Arrays,
        moving: Sequence[int],
        dtypes: Sequence[np.dtype],
        options: Mapping[str, Any],
    ) -> list[np.ndarray]:
        """The cotangent between what is in front of a matrix and what is behind it, both transposed."""
        (ct,) = cotangents
        return [
            self.product([*[a.T for a in reversed(arrays[:i])], ct, *[a.T for a in reversed(arrays[i + 1 :])]])
            for i in moving
        ]

    def result_dtypes(
        self, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[np.dtype], options: Mapping[str, Any]
    ) -> list[np.dtype]:
        """That of the matrices."""
        return [dtypes[0]]

    @staticmethod
    def product(arrays: Arrays) -> np.ndarray:
        """Element (i, j) is the sum over k of the products of the elements (i, k) and (k, j)."""
        result, *others = (a.astype(wide(a.dtype)) for a in arrays)
        with np.errstate(invalid="ignore", over="ignore"):  # what is infinite, times zero, or of both signs
            for other in others:
                result = result @ other
        return result


matmul = two_matmuls = Matmuls()


def relaid_cost(
    mesh: MeshCase, sides: tuple[int, int], held: Layout, wanted: Layout, *, bits: int = 8, transposed: bool = False
) -> Cost:
    """Each dimension whose axes are not those that it is to have is gathered, rows first, and then cut.

    Transposed, what was gathered to all is cut, at no cost; of what was cut, rows first, the cotangents of all parts
    are added up.
    """
    own = [side // mesh.axis_size(axes) for side, axes in zip(sides, held, strict=True)]
    gathers = sums = NOTHING
    other = [dimension for dimension in (0, 1) if held[dimension] != wanted[dimension]]
    for dimension in other:
        if held[dimension]:
            gathers += built_in("all_gather", math.prod(own), bits=bits)
            own[dimension] = sides[dimension]
    for dimension in other:
        if wanted[dimension]:
            sums += summed_replicas(math.prod(own), bits=bits)
            own[dimension] //= mesh.axis_size(wanted[dimension])
    return sums if transposed else gathers


def gathered_cost(
    mesh: MeshCase, sides: Sides, lhs: Layout, rhs: Layout, result: Layout, *, bits: int = 8, backward: bool = False
) -> Cost:
    """`[B, D] @ [D, F] -> [B, F]`: both operands are gathered, where they are not as the result is.

    The gradient gathers them as well. A device's rows are cast to vary as the columns do, and the other way round.
    """
    b, d, f = sides
    rows, columns = result
    operands = (((b, d), lhs, (rows, ())), ((d, f), rhs, ((), columns)))
    cost = NOTHING
    for transposed in (False, True)[: 1 + backward]:
        for shape, held, wanted in operands:
            cost += relaid_cost(mesh, shape, held, wanted, bits=bits, transposed=transposed)
    if backward and columns:
        cost += summed_replicas(b // mesh.axis_size(rows) * d, bits=bits)
    if backward and rows:
        cost += summed_replicas(d * (f // mesh.axis_size(columns)), bits=bits)
    return cost


def reduced_cost(
    mesh: MeshCase,
    sides: Sides,
    lhs: Layout,
    rhs: Layout,
    result: Layout,
    *,
    bits: int = 8,
    sum_bits: int = 8,
    backward: bool = False,
) -> Cost:
    """The right operand is gathered, where its rows are not the columns of the left one; then sums, and the result.

    The gradient gathers the right operand as well. The sum is linear, and known to all.
    """
    b, d, f = sides
    rows, contracted = lhs
    cost = relaid_cost(mesh, (d, f), rhs, (contracted, ()), bits=bits)
    if backward:
        cost += relaid_cost(mesh, (d, f), rhs, (contracted, ()), bits=bits, transposed=True)
        cost += summed_replicas(d // mesh.axis_size(contracted) * f if rows else 0, bits=bits)
    elif contracted:
        cost += built_in("all_reduce", b // mesh.axis_size(rows) * f, bits=sum_bits)
    return cost + relaid_cost(mesh, (b, f), (rows, ()), result, bits=bits, transposed=backward)


def two_gathered_cost(
    mesh: MeshCase, sides: Sides, layouts: Sequence[Layout], *, bits: int = 8, backward: bool = False
) -> Cost:
    """Two products; `layouts` are those of X, W_in, what is hidden, W_out and the result, `sides` B, D, F and D."""
    x, w_in, hidden, w_out, result = layouts
    first = gathered_cost(mesh, sides[:3], x, w_in, hidden, bits=bits, backward=backward)
    return first + gathered_cost(mesh, (sides[0], *sides[2:]), hidden, w_out, result, bits=bits, backward=backward)


def missing(mesh: MeshCase, sides: tuple[int, int], held: Layout, used: Layout) -> np.ndarray:
    """Of a matrix of two sides, which elements each device uses and does not hold: bool `[*mesh.sizes, *sides]`."""
    return _part(mesh, sides, used) & ~_part(mesh, sides, held)


def lacking(mesh: MeshCase, sides: Sides, layouts: Sequence[Layout], result: Layout) -> int:
    """How many numbers some device must receive at least to hold its part of a product, of two matrices or more.

    The part `[b, f]` of the result that it holds depends on b rows of the first matrix. If k numbers of such a row are
    elsewhere, and all else is known, the row of the result is a linear function of these k, of a rank of at most k, f,
    and the sides in between; of matrices that are nothing special the rank is as large as that. So it must receive as
    many numbers, be it those k, or sums of theirs. The same is so of the columns of the last matrix. Of those between
    it needs everything: one number at least, if something is elsewhere.
    """
    b, *inner, f = sides
    own_rows, own_columns = b // mesh.axis_size(result[0]), f // mesh.axis_size(result[1])
    of_rows = missing(mesh, (b, inner[0]), layouts[0], (result[0], ())).sum(axis=-1)
    of_columns = missing(mesh, (inner[-1], f), layouts[-1], ((), result[1])).sum(axis=-2)
    by_rows = np.minimum(of_rows, min([own_columns, *inner[1:]])).sum(axis=-1)
    by_columns = np.minimum(of_columns, min([own_rows, *inner[:-1]])).sum(axis=-1)
    between = zip(inner[:-1], inner[1:], layouts[1:-1], strict=True)
    some = any(missing(mesh, (rows, columns), held, ((), ())).any() for rows, columns, held in between)
    return max(int(some), int(np.maximum(by_rows, by_columns).max(initial=0)))


def _part(mesh: MeshCase, sides: tuple[int, int], layout: Layout) -> np.ndarray:
    """Which elements of a matrix each device holds: bool `[*mesh.sizes, *sides]`."""
    found = np.ones((*mesh.sizes, *sides), bool)
    for dimension, (side, axes) in enumerate(zip(sides, layout, strict=True)):
        parts = mesh.axis_size(axes)
        owner = np.arange(side) * parts // side if side else np.arange(0)
        place = axis_index(mesh, axes) if axes else np.zeros(mesh.sizes, int)
        here = place[..., None] == owner
        found &= np.expand_dims(here, -1 if dimension == 0 else -2)
    return found
