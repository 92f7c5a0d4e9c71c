"""What JAX leaves open: a result may not depend on it, though the machine at hand always decides it the same way.

`jnp.empty` and `lax.empty` promise no contents. XLA:CPU happens to hand out zeros, an accelerator whatever the last
program left. And of two updates of one place a scatter may write either last (the documentation of `jax.lax.scatter`:
"they may be applied in any order"), or lose one of them, where `unique_indices` promised that there are no two. Where
`indices_are_sorted` promised what is not so, anything may be read or written: here, what sorted indices would name.

So a program that meets one of these runs twice, with two different contents, or orders: a result that differs between
the two has read what nothing determines. What is written over, or selected away, does not matter.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import ml_dtypes
import numpy as np

from shardproof.oracles.dtypes import is_float, is_integer, largest_finite
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.simulate.errors import OrderDependent, SimulationError, UnwrittenRead, location
from shardproof.properties.engines.simulate.groups import device_name
from shardproof.properties.engines.simulate.layout import nan_equal

ALLOCATES = ("empty", "empty2")

Choice = Literal["contents", "order", "sorting"]
"""What is left open: the contents of memory, the order of updates, or what indices mean that are not sorted."""

Found = dict[tuple[Choice, int], Any]
"""The equations that leave something open, by what that is and their identity."""

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


def repeated(places: Sequence[np.ndarray], block: Sequence[int]) -> bool:
    """Whether index arrays `[n]`, one per dimension of a block, name a place of it twice."""
    if len(places[0]) < 2:
        return False
    return len(np.unique(np.ravel_multi_index(tuple(places), tuple(block)))) < len(places[0])


def sorted_positions(starts: Sequence[np.ndarray], block: Sequence[int]) -> list[np.ndarray] | None:
    """Windows' positions `[*lead, *batch]`, one array per dimension of a block, sorted; None if they are already.

    The batch goes in row-major order, and positions compare by the block's first dimension first. All that lie outside
    of the block on one side are equal.
    """
    ranks = [np.clip(start, -1, n) + 1 for start, n in zip(starts, block, strict=True)]
    order = np.zeros(starts[0].shape[-1:], np.int64)
    for rank, n in zip(ranks, block, strict=True):
        order = order * (n + 2) + rank
    if not (np.diff(order, axis=-1) < 0).any():
        return None
    order = np.argsort(order, axis=-1, kind="stable")
    return [np.take_along_axis(start, order, axis=-1) for start in starts]


def first_difference(one: np.ndarray, other: np.ndarray) -> tuple[int, ...] | None:
    """The first place at which two arrays of the same shape differ, NaN for NaN."""
    differing = np.argwhere(~nan_equal(one, other))
    return tuple(int(i) for i in differing[0]) if len(differing) else None


def check_determined(
    choice: Choice,
    found: Sequence[Any],
    results: Sequence[np.ndarray],
    again: Sequence[np.ndarray],
    left: Callable[[Choice | None], Left],
) -> None:
    """The results do not depend on what is left open.

    Arguments:
        choice: what is left open.
        found: the equations that leave it open.
        results: what the program gives if it is decided one way.
        again: what it gives if it is decided the other way.
        left: what the `shard_map`s of the program leave, if something, or nothing, is decided the other way.

    Raises:
        UnwrittenRead: naming the first element that differs, its device, and what allocated the memory.
        OrderDependent: the same, and what scatters or gathers.
    """
    for number, (one, other) in enumerate(zip(results, again, strict=True)):
        at = first_difference(one, other)
        if at is not None:
            values = f"element {list(at)} is {one[at]} or {other[at]}"
            raise _undetermined(choice, number, values, first_device(left(None), left(choice)), found)


def _undetermined(choice: Choice, number: int, values: str, device: str, found: Sequence[Any]) -> SimulationError:
    places = ", ".join(dict.fromkeys(map(location, found)))
    if choice == "contents":
        told = f"depends on memory that was never written: {values}, as that memory is{device}; allocated at {places}"
        return UnwrittenRead(f"result {number} {told}")
    if choice == "sorting":
        told = f"depends on indices that are not sorted, and indices_are_sorted promised it: {values}{device}"
        return OrderDependent(f"result {number} {told}; used at {places}")
    promised = any(equation.params["unique_indices"] for equation in found)
    why = "and unique_indices promised that there are no two" if promised else "which may be either"
    told = f"depends on which of two updates of one place a scatter applies last, {why}: {values}{device}"
    return OrderDependent(f"result {number} {told}; scattered at {places}")


def first_device(one: Left, other: Left) -> str:
    """The first device whose block differs between the runs, for a message; nothing if no block does."""
    for (mesh, x), (_, y) in zip(one, other, strict=False):
        at = first_difference(*np.broadcast_arrays(x, y))
        if at is not None:
            rank = len(mesh.sizes)
            return f", first on device {device_name(mesh, at[:rank])} in element {list(at[rank:])} of its block"
    return ""
