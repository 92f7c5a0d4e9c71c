"""Gradients of collectives: their linear transposes, as maps from cotangent blocks to cotangent blocks.

The transpose of a map from blocks to blocks is taken over *all* blocks of all devices.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from shardproof.oracles.collectives import (
    Axes,
    Blocks,
    Groups,
    all_gather,
    all_reduce,
    all_to_all,
    among_participants,
    permute,
    reduce_scatter,
    ring_shift,
)
from shardproof.oracles.dtypes import round_to, wide
from shardproof.oracles.mesh import MeshCase


def all_reduce_transpose(ct: Blocks, mesh: MeshCase, axes: Axes, *, op: str = "sum", groups: Groups = None) -> Blocks:
    """Every participant's block entered every participant's sum (or mean): an all-reduce again."""
    if op not in ("sum", "mean"):
        raise ValueError(f"op={op!r}: only sum and mean are linear")
    return all_reduce(ct, mesh, axes, op=op, groups=groups)


def all_gather_transpose(ct: Blocks, mesh: MeshCase, axes: Axes, *, axis: int = 0, **options: Any) -> Blocks:
    """Participant i's block became piece i of every participant's result: a reduce-scatter."""
    return reduce_scatter(ct, mesh, axes, scatter_dimension=axis, **options)


def reduce_scatter_transpose(
    ct: Blocks, mesh: MeshCase, axes: Axes, *, scatter_dimension: int = 0, **options: Any
) -> Blocks:
    """Piece i of every participant's block was added into participant i's result: an all-gather."""
    return all_gather(ct, mesh, axes, axis=scatter_dimension, **options)


def all_to_all_transpose(
    ct: Blocks, mesh: MeshCase, axes: Axes, *, split_axis: int, concat_axis: int, **options: Any
) -> Blocks:
    """Every piece goes back where it came from: split and concatenation change places."""
    return all_to_all(ct, mesh, axes, split_axis=concat_axis, concat_axis=split_axis, **options)


def permute_transpose(ct: Blocks, mesh: MeshCase, axes: Axes, *, perm: Iterable[tuple[int, int]]) -> Blocks:
    """Every block goes back from its destination to its source."""
    return permute(ct, mesh, axes, perm=[(destination, source) for source, destination in perm])


def ring_shift_transpose(ct: Blocks, mesh: MeshCase, axes: Axes, *, offset: int = 1) -> Blocks:
    """The shift the other way round."""
    return ring_shift(ct, mesh, axes, offset=-offset)


def broadcast_transpose(ct: Blocks, mesh: MeshCase, axes: Axes, *, root: int = 0) -> Blocks:
    """The root's block reached every participant: the root receives the sum, all others zeros."""

    def exchange(participants: np.ndarray) -> np.ndarray:
        result = np.zeros_like(participants)
        with np.errstate(invalid="ignore", over="ignore"):
            total = participants.astype(wide(participants.dtype)).sum(axis=0)
        result[root] = round_to(total, participants.dtype)
        return result

    return among_participants(ct, mesh, axes, None, exchange)
