"""All collectives: the blocks of all devices in, the blocks of all devices out.

Blocks are one array `[*mesh.sizes, *block]`, mesh axes leading in mesh order. A collective over an
axis tuple connects the devices that differ in those axes only; a participant's *logical index* counts
with the last name varying fastest. Each function brings the participants to the front
(`[p, …, *block]`, by logical index), exchanges blocks, and puts them back.

`groups` (`axis_index_groups` in `jax.lax`) splits the participants further: a partition of the logical
indices into lists, each of which runs the collective by itself. Reductions take lists of any length; where
the shape of the result depends on it, they are equally long.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Shaped

from shardproof.oracles.dtypes import is_float, round_to, wide
from shardproof.oracles.layout import Axes, Blocks, mesh_first, participants_first
from shardproof.oracles.mesh import MeshCase

Groups = Sequence[Sequence[int]] | None
Exchange = Callable[[np.ndarray], np.ndarray]


class GroupMismatch(ValueError):
    """Blocks or groups that do not fit the participants among which they are exchanged."""


def among_participants(blocks: Blocks, mesh: MeshCase, axes: Axes, groups: Groups, exchange: Exchange) -> Blocks:
    """Applies `exchange` (`[p, others, *block]` to `[p, others, *block']`) to every set of participants.

    The leading dimension is the logical index within a group where there are groups.
    """
    participants = participants_first(blocks, mesh, axes)
    received = exchange(participants) if groups is None else within_groups(participants, mesh, groups, exchange)
    return mesh_first(received, mesh, axes)


def within_groups(
    participants: np.ndarray, mesh: MeshCase, groups: Sequence[Sequence[int]], exchange: Exchange
) -> Blocks:
    """Applies `exchange` to the participants of every group by themselves: `[p, others, *block]` in and out.

    Raises:
        GroupMismatch: if the groups are no partition, or differ in length and the shape of a result depends on it.
    """
    if sorted(i for group in groups for i in group) != list(range(len(participants))) or not all(map(len, groups)):
        raise GroupMismatch(f"groups={groups}: expected a partition of range({len(participants)}), on the mesh {mesh}")
    received = [exchange(participants[list(group)]) for group in groups]
    if len({part.shape[1:] for part in received}) > 1:
        raise GroupMismatch(
            f"groups={groups}: expected groups of equal length, on which results' shapes depend, on {mesh}"
        )
    result = np.empty((len(participants), *received[0].shape[1:]), received[0].dtype)
    for group, part in zip(groups, received, strict=True):
        result[list(group)] = part
    return result


def axis_index(mesh: MeshCase, axes: Axes) -> Shaped[np.ndarray, "..."]:
    """Every device's logical index over the axis tuple: int32 `[*mesh.sizes]`."""
    p = mesh.axis_size(axes)
    blank = np.zeros(mesh.sizes, np.int32)
    return among_participants(blank, mesh, axes, None, lambda m: np.arange(p, dtype=np.int32)[:, None] + m)


def reduced_dtype(dtype: np.dtype, op: str) -> np.dtype:
    """The dtype of a reduction: sums of bool count, in int32; means of exact dtypes are float32."""
    dtype = np.dtype(dtype)
    if op == "mean" and not is_float(dtype):
        return np.dtype(np.float32)
    return np.dtype(np.int32) if op == "sum" and dtype == bool else dtype


def reduce_participants(participants: np.ndarray, op: str) -> np.ndarray:
    """`[p, …]` to `[…]`: the sum, mean, maximum or minimum over the participants, rounded once."""
    exact = participants.astype(wide(participants.dtype))
    reductions: dict[str, Callable[..., Any]] = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}
    with np.errstate(invalid="ignore", over="ignore"):
        result = reductions[op](exact, axis=0)
        return np.asarray(result).astype(reduced_dtype(participants.dtype, op))


def all_reduce(blocks: Blocks, mesh: MeshCase, axes: Axes, *, op: str = "sum", groups: Groups = None) -> Blocks:
    """Every participant receives the reduction of all participants' blocks: `[*b]` to `[*b]`."""

    def exchange(participants: np.ndarray) -> np.ndarray:
        reduced = reduce_participants(participants, op)
        return np.broadcast_to(reduced, participants.shape)

    return among_participants(blocks, mesh, axes, groups, exchange)


def all_gather(
    blocks: Blocks, mesh: MeshCase, axes: Axes, *, axis: int = 0, tiled: bool = False, groups: Groups = None
) -> Blocks:
    """Every participant receives all participants' blocks, in logical order.

    Stacked along a new dimension `axis`, or, if `tiled`, concatenated along the dimension `axis`.
    """

    def exchange(participants: np.ndarray) -> np.ndarray:
        if tiled:
            gathered = np.concatenate(list(participants), axis=axis % (participants.ndim - 2) + 1)
        else:
            gathered = np.stack(list(participants), axis=axis % (participants.ndim - 1) + 1)
        return np.broadcast_to(gathered, (len(participants), *gathered.shape))

    return among_participants(blocks, mesh, axes, groups, exchange)


def split(local: np.ndarray, parts: int, dimension: int, tiled: bool, *, lead: int) -> np.ndarray:
    """Blocks behind `lead` dimensions, cut into `parts` equal pieces along a dimension of theirs, stacked in front.

    Without `tiled` the dimension has exactly `parts` entries and disappears.

    Raises:
        GroupMismatch: if it does not divide, or has more or fewer entries.
    """
    at = dimension % (local.ndim - lead) + lead
    size = local.shape[at]
    if size % parts if tiled else size != parts:
        expected = f"a multiple of {parts}" if tiled else str(parts)
        raise GroupMismatch(
            f"dimension {dimension} of the block has size {size}: expected {expected}, one piece per participant"
        )
    kept = [size // parts] if tiled else []
    return np.moveaxis(local.reshape(*local.shape[:at], parts, *kept, *local.shape[at + 1 :]), at, 0)


def reduce_scatter(
    blocks: Blocks,
    mesh: MeshCase,
    axes: Axes,
    *,
    scatter_dimension: int = 0,
    tiled: bool = False,
    groups: Groups = None,
) -> Blocks:
    """Participant i receives piece i, along `scatter_dimension`, of the sum of all participants' blocks."""

    def exchange(participants: np.ndarray) -> np.ndarray:
        total = reduce_participants(participants, "sum")
        return split(total, len(participants), scatter_dimension, tiled, lead=1)

    return among_participants(blocks, mesh, axes, groups, exchange)


def all_to_all(
    blocks: Blocks,
    mesh: MeshCase,
    axes: Axes,
    *,
    split_axis: int,
    concat_axis: int,
    tiled: bool = False,
    groups: Groups = None,
) -> Blocks:
    """Participant i receives piece i, along `split_axis`, of every participant's block, in logical order.

    They are concatenated along `concat_axis` if `tiled`, and stacked along it otherwise.
    """

    def exchange(participants: np.ndarray) -> np.ndarray:
        rank = participants.ndim - 2
        pieces = split(participants, len(participants), split_axis, tiled, lead=2)  # [receiver, sender, others, *piece]
        by_sender = list(np.moveaxis(pieces, 1, 0))
        return (np.concatenate if tiled else np.stack)(by_sender, axis=concat_axis % rank + 2)

    return among_participants(blocks, mesh, axes, groups, exchange)


def permute(blocks: Blocks, mesh: MeshCase, axes: Axes, *, perm: Iterable[tuple[int, int]]) -> Blocks:
    """For each (source, destination), the destination receives the source's block; all others zeros."""
    sources, destinations = np.array(list(perm), int).reshape(-1, 2).T

    def exchange(participants: np.ndarray) -> np.ndarray:
        result = np.zeros_like(participants)
        result[destinations] = participants[sources]
        return result

    return among_participants(blocks, mesh, axes, None, exchange)


def ring_shift(blocks: Blocks, mesh: MeshCase, axes: Axes, *, offset: int = 1) -> Blocks:
    """Participant i + offset, wrapping, receives participant i's block."""
    return among_participants(blocks, mesh, axes, None, lambda participants: np.roll(participants, offset, axis=0))


def broadcast(blocks: Blocks, mesh: MeshCase, axes: Axes, *, root: int = 0) -> Blocks:
    """Every participant receives the block of participant `root`."""
    return among_participants(blocks, mesh, axes, None, lambda m: np.broadcast_to(m[root], m.shape))


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
