"""Memory that was allocated and never written: what a result makes of it depends on what was there before.

`jnp.empty` and `lax.empty` promise no contents. XLA:CPU happens to hand out zeros, an accelerator whatever the last
program left. So a program that allocates runs twice, with two different contents: a result that differs between
the two has read what was never written. What is written over, or selected away, does not matter.
"""

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from shardproof.oracles.dtypes import is_float, is_integer, largest_finite
from shardproof.oracles.layout import device_name, nan_equal
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.simulate.errors import UnwrittenRead
from shardproof.properties.engines.simulate.liveness import equations
from shardproof.properties.engines.simulate.location import location

ALLOCATES = ("empty", "empty2")

Left = list[tuple[MeshCase, np.ndarray]]
"""The blocks that each `shard_map` of a program left on its devices."""


def contents(dtype: np.dtype, other: bool) -> np.ndarray:
    """What unwritten memory of a dtype holds: NaN, the lowest integer, False; or the other: the largest, True."""
    if is_float(dtype):
        return np.array(largest_finite(dtype) if other else np.nan).astype(dtype)
    if is_integer(dtype):
        info = ml_dtypes.iinfo(dtype)
        return np.array(int(info.max if other else info.min)).astype(dtype)
    return np.array(other, dtype) if dtype == bool else np.zeros((), dtype)  # float0, which holds nothing


def allocations(jaxpr: Any) -> Iterator[Any]:
    """The equations that allocate memory without writing to it, inner jaxprs included."""
    return (equation for equation in equations(jaxpr) if equation.primitive.name in ALLOCATES)


def allocates(jaxpr: Any) -> bool:
    """Whether a jaxpr, or one within it, allocates memory without writing to it."""
    if jaxpr not in _ALLOCATES:
        _ALLOCATES[jaxpr] = any(True for _ in allocations(jaxpr))
    return _ALLOCATES[jaxpr]


_ALLOCATES: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def first_difference(one: np.ndarray, other: np.ndarray) -> tuple[int, ...] | None:
    """The first place at which two arrays of the same shape differ, NaN for NaN."""
    differing = np.argwhere(~nan_equal(one, other))
    return tuple(int(i) for i in differing[0]) if len(differing) else None


def check_written(jaxpr: Any, results: Sequence[np.ndarray], again: Sequence[np.ndarray], left: Sequence[Left]) -> None:
    """The results do not depend on the contents of unwritten memory.

    Arguments:
        jaxpr: the program.
        results: what it gives with one content of such memory.
        again: what it gives with the other.
        left: what its `shard_map`s left in both runs.

    Raises:
        UnwrittenRead: naming the first element that differs, its device, and what allocated the memory.
    """
    for number, (one, other) in enumerate(zip(results, again, strict=True)):
        at = first_difference(one, other)
        if at is not None:
            places = ", ".join(dict.fromkeys(location(equation) for equation in allocations(jaxpr)))
            raise UnwrittenRead(
                f"result {number} depends on memory that was never written: element {list(at)} is {one[at]} or "
                f"{other[at]}, as that memory is{first_device(*left)}; allocated at {places}"
            )


def first_device(one: Left, other: Left) -> str:
    """The first device whose block differs between the runs, for a message; nothing if no block does."""
    for (mesh, x), (_, y) in zip(one, other, strict=False):
        at = first_difference(*np.broadcast_arrays(x, y))
        if at is not None:
            rank = len(mesh.sizes)
            return f", first on device {device_name(mesh, at[:rank])} in element {list(at[rank:])} of its block"
    return ""
