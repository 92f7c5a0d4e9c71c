"""The bases of oracles of whole arrays: global ones, and those of which participants have parts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shardproof.oracles.dtypes import is_float, wide
from shardproof.oracles.layout import Axes, Blocks, Operands, mesh_first, participants_first
from shardproof.oracles.mesh import MeshCase

Arrays = Sequence[Any]
"""Arrays; of tangents None, where an array has none."""

Tangents = Mapping[int, np.ndarray]
"""Those of some of the arrays, by their places."""

Dtypes = Sequence[np.dtype]
Options = Mapping[str, Any]


class OfWholes:
    """The meaning of an operation on whole arrays, each in a dtype that loses nothing that matters.

    `dtypes` are those of the arguments' leaves in the case at hand, `options` its keyword arguments.
    """

    value: Callable[[Arrays, Dtypes, Options], list[np.ndarray]]  # the results
    # their tangents, given those of some of the leaves
    pushforward: Callable[[Arrays, Tangents, Dtypes, Options], list[np.ndarray]]
    # the cotangents of some of the leaves, given those of the results and the places of the leaves
    pullback: Callable[[Arrays, Arrays, Sequence[int], Dtypes, Options], list[np.ndarray]]
    nearby: Callable[[Arrays, Dtypes, Options], list[np.ndarray]] | None = None  # the results, off as doubles may be
    generic = False  # whether derivatives are those at real numbers alone, since there may be kinks at others
    differences = False  # whether derivatives are differences of values, which say nothing of a kink
    doubt = (0.0, 0.0)  # how far off values and derivatives may be
    casts: tuple[np.dtype, ...] = ()  # the floats that its own words round to

    def result_dtypes(self, shapes: Sequence[tuple[int, ...]], dtypes: Dtypes, options: Options) -> list[np.dtype]:
        """The dtypes of the results, given shapes and dtypes of the leaves: that of the first."""
        return [dtypes[0]]


class OfParticipants:
    """An oracle of blocks, by what an operation means on the whole arrays that they make up.

    Whole arrays are `[any, any, *whole]`, in doubles or wider if they are floats: two dimensions in front are for
    participants and process groups, and broadcast.
    """

    # of each operand the dimension that participants share, from the back; None: each has all of its own
    sharded: tuple[int | None, ...]
    scattered: int | None = None  # the same of the result

    result: Callable[..., np.ndarray]  # `(*wholes, **options)` to the whole result
    tangent: Callable[..., np.ndarray]  # `(wholes, tangents, **options)` to its tangent
    # `(wholes, cotangent, **options)` to the operands' cotangents, None for one that has no gradient
    cotangents: Callable[..., Sequence[np.ndarray | None]]

    def scatters(self, **options: Any) -> int | None:
        """The same of the result with these options."""
        return self.scattered

    def value(self, operands: Operands, mesh: MeshCase, axes: Axes, **options: Any) -> list[Blocks]:
        """The result's blocks."""
        wholes = self._wholes(operands, mesh, axes)
        with np.errstate(all="ignore"):
            return self._parts([self.result(*wholes, **options)], [self.scatters(**options)], mesh, axes)

    def pushforward(
        self, operands: Operands, tangents: Sequence[Any], mesh: MeshCase, axes: Axes, **options: Any
    ) -> list[Blocks]:
        """Those of its tangent."""
        wholes, along = (self._wholes(each, mesh, axes) for each in (operands, tangents))
        with np.errstate(all="ignore"):
            return self._parts([self.tangent(wholes, along, **options)], [self.scatters(**options)], mesh, axes)

    def pullback(
        self, operands: Operands, cotangents: Operands, mesh: MeshCase, axes: Axes, **options: Any
    ) -> list[Any]:
        """Those of the operands' cotangents: a part that all participants use has the sum of theirs."""
        wholes = self._wholes(operands, mesh, axes)
        (ct,) = _widened(cotangents)
        own = participants_first(ct, mesh, axes)
        with np.errstate(all="ignore"):
            if (dimension := self.scatters(**options)) is not None:
                own = join(own, dimension)
            elif None not in self.sharded:  # all participants have the same result
                own = own.sum(axis=0, keepdims=True)
            found = [
                x if x is None or shared is None else x.sum(axis=0, keepdims=True)
                for x, shared in zip(self.cotangents(wholes, own, **options), self.sharded, strict=False)
            ]
        return self._parts(found, self.sharded, mesh, axes)

    def _wholes(self, operands: Sequence[Any], mesh: MeshCase, axes: Axes) -> list[Any]:
        pairs = zip(operands, self.sharded, strict=False)
        each = [(x if x is None else participants_first(x, mesh, axes), dimension) for x, dimension in pairs]
        return _widened([x if x is None or dimension is None else join(x, dimension) for x, dimension in each])

    def _parts(self, wholes: Sequence[Any], dimensions: Sequence[int | None], mesh: MeshCase, axes: Axes) -> list[Any]:
        p = mesh.axis_size(axes)

        def part(x: np.ndarray, dimension: int | None) -> Blocks:
            each = np.broadcast_to(x, (p, *x.shape[1:])) if dimension is None else cut(x, p, dimension)
            return mesh_first(each, mesh, axes)

        return [x if x is None else part(x, dimension) for x, dimension in zip(wholes, dimensions, strict=False)]


def _widened(arrays: Sequence[Any]) -> list[Any]:
    return [x if x is None or not is_float(x.dtype) else x.astype(wide(x.dtype)) for x in arrays]


def join(parts: np.ndarray, dimension: int) -> np.ndarray:
    """Parts `[p, others, *part]` one after the other in a dimension, counted from the back: `[1, others, *whole]`."""
    return np.concatenate(parts, axis=dimension)[None]


def cut(whole: np.ndarray, parts: int, dimension: int) -> np.ndarray:
    """The inverse of `join`."""
    return np.stack(np.split(whole[0], parts, axis=dimension))
