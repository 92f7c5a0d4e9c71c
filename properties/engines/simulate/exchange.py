"""Process groups, the blocks of global arrays, and collectives.

Collectives follow StableHLO's specification. Each takes the blocks of the participants of process groups,
`[groups, participants, *block]`, and returns `[groups, participants, *result]`, or `[groups, 1, *result]` where all of
a group receive the same.
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat

import numpy as np

from shardproof.oracles.dtypes import wide
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.simulate.errors import InvalidGroups, RaggedMetadata, UnequalReplicas

Groups = Sequence[Sequence[int]] | None
"""`axis_index_groups`: a partition of the participants over an axis tuple; None: all of them together."""


Sizes = tuple[tuple[str, int], ...]
"""The axes of a mesh with their sizes, in mesh order."""


@functools.lru_cache(maxsize=256)
def _participants(mesh: Sizes, axes: tuple[str, ...]) -> np.ndarray:
    """All participants over an axis tuple, by number: `[copies, participants]`, the copies in mesh order.

    The last name varies fastest.
    """
    names, sizes = [name for name, _ in mesh], [size for _, size in mesh]
    along = [names.index(name) for name in axes]
    others = [i for i, name in enumerate(names) if name not in axes]
    devices = np.arange(math.prod(sizes)).reshape(sizes).transpose(*others, *along)
    devices = devices.reshape(-1, math.prod(sizes[i] for i in along))
    devices.flags.writeable = False
    return devices


def axis_index(mesh: Sizes, axes: tuple[str, ...]) -> np.ndarray:
    """Every device's number along an axis tuple: int32 `[devices]`."""
    devices = _participants(mesh, axes)
    number = np.empty(devices.size, np.int32)
    number[devices] = np.arange(devices.shape[1])
    return number


def process_groups(mesh: MeshCase, axes: Sequence[str], groups: Groups = None) -> list[np.ndarray]:
    """The devices of every process group, in the order of their numbers along `axes`: `[copies, participants]` each.

    One array holds the same group on all positions along the other axes of the mesh, in mesh order. There are several
    if `groups` divides the participants; raises InvalidGroups if it is no partition of them.
    """
    devices = _participants(tuple(mesh.shape.items()), tuple(axes))
    if groups is None:
        return [devices]
    p = devices.shape[1]
    if sorted(i for group in groups for i in group) != list(range(p)) or not all(map(len, groups)):
        raise InvalidGroups(f"groups={groups}: expected a partition of range({p}), on the mesh {mesh}")
    return [devices[:, list(group)] for group in groups]


def device_name(mesh: MeshCase, device: int | Sequence[int]) -> str:
    """A device, given by its number or its coordinates: `(dp=0, tp=1)`."""
    at = np.unravel_index(device, mesh.sizes) if isinstance(device, int | np.integer) else device
    return f"({', '.join(f'{name}={i}' for name, i in zip(mesh.axis_names, at, strict=True))})"


Entries = Sequence[Sequence[str]]
"""The mesh axes that split each dimension, the last varying fastest; the last dimensions may be left out."""


def divide(x: np.ndarray, mesh: MeshCase, entries: Entries) -> np.ndarray:
    """`[*global]` as `[*lead, *block]`, with one leading dimension per mesh axis: 1 for one that splits nothing."""
    sizes: list[int] = []
    inside, at = [], {}
    for size, names in zip(x.shape, chain(entries, repeat(())), strict=False):
        for name in names:
            if name in mesh.shape:
                at[name] = len(sizes)
                sizes.append(mesh.shape[name])
                size //= mesh.shape[name]
        inside.append(len(sizes))
        sizes.append(size)
    splitting = [name for name in mesh.axis_names if name in at]
    parts = x.reshape(sizes).transpose(*(at[name] for name in splitting), *inside)
    lead = (mesh.shape[name] if name in at else 1 for name in mesh.axis_names)
    return parts.reshape((*lead, *parts.shape[len(splitting) :]))


def join(blocks: np.ndarray, mesh: MeshCase, entries: Entries) -> np.ndarray:
    """`[*lead, *block]` as `[*global]`: the inverse of `divide`; `lead` is 1 along axes that split nothing."""
    order, sizes, rank = [], [], len(mesh.sizes)
    for d, names in zip(range(rank, blocks.ndim), chain(entries, repeat(())), strict=False):
        together = [*(mesh.axis_names.index(name) for name in names if name in mesh.shape), d]
        order += together
        sizes.append(math.prod(blocks.shape[i] for i in together))
    others = [i for i in range(rank) if i not in order]
    return blocks.transpose(*others, *order).reshape(sizes)


def first_replica(blocks: np.ndarray, mesh: MeshCase, dimension: int) -> np.ndarray:
    """Blocks `[*lead, *block]` of the first device along a mesh axis; raises UnequalReplicas unless all are equal."""
    if blocks.shape[dimension] == 1:
        return blocks
    first = blocks.take([0], axis=dimension)
    rank = len(mesh.sizes)
    same = nan_equal(blocks, first).all(axis=tuple(range(rank, blocks.ndim)))
    if not same.all():
        there = [int(i) for i in np.argwhere(~same)[0]]
        here = [0 if i == dimension else position for i, position in enumerate(there)]
        raise UnequalReplicas(
            f"blocks differ along {mesh.axis_names[dimension]}, where they should be equal: device "
            f"{device_name(mesh, there)} does not hold what {device_name(mesh, here)} holds"
        )
    return first


def nan_equal(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Elementwise equality in which a NaN equals a NaN."""
    return np.asarray((one == other) | ((one != one) & (other != other)))


REDUCTIONS: dict[str, np.ufunc] = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def exchange(
    x: np.ndarray,
    mesh: MeshCase,
    axes: Sequence[str],
    groups: Groups,
    collective: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """Runs a collective in every process group: `[*lead, *block]` to `[*lead', *result]`.

    Along a mesh axis where `lead` is 1, all devices share one value. The result is shared along the same axes, and
    along `axes` if all participants receive the same.
    """
    rank = len(mesh.sizes)
    sizes = tuple(n if name in axes else x.shape[i] for i, (name, n) in enumerate(mesh.shape.items()))
    held = mesh if sizes == mesh.sizes else MeshCase(mesh.axis_names, sizes)
    blocks = np.broadcast_to(x, (*sizes, *x.shape[rank:])).reshape(held.size, *x.shape[rank:])
    members = process_groups(held, axes, groups)
    received = [collective(blocks[devices]) for devices in members]
    if len({part.shape[2:] for part in received}) > 1:
        raise InvalidGroups(
            f"groups={groups}: expected groups of equal length, on which results' shapes depend, on {mesh}"
        )
    shape = received[0].shape[2:]
    if groups is None and received[0].shape[1] == 1:
        return received[0].reshape(*(1 if name in axes else n for name, n in held.shape.items()), *shape)
    result = np.empty((held.size, *shape), received[0].dtype)
    for devices, part in zip(members, received, strict=True):
        result[devices] = part
    return result.reshape(*sizes, *shape)


def all_reduce(blocks: np.ndarray, op: str, exact: Callable[[np.dtype], np.dtype] = wide) -> np.ndarray:
    """The sum, maximum or minimum of all participants' blocks, in `exact` floats, rounded once; bools sum to int32."""
    found = REDUCTIONS[op].reduce(blocks, axis=1, dtype=exact(blocks.dtype), keepdims=True)
    return found.astype(np.int32 if op == "sum" and blocks.dtype == bool else blocks.dtype)


def all_gather(blocks: np.ndarray, dimension: int, tiled: bool) -> np.ndarray:
    """All participants' blocks, stacked along a new dimension, or concatenated along one if `tiled`."""
    return _join(blocks[:, None], dimension) if tiled else np.moveaxis(blocks, 1, dimension + 1)[:, None]


def reduce_scatter(
    blocks: np.ndarray, dimension: int, tiled: bool, exact: Callable[[np.dtype], np.dtype] = wide
) -> np.ndarray:
    """Piece i of the sum along a dimension, on participant i; the dimension disappears unless `tiled`."""
    return _pieces(all_reduce(blocks, "sum", exact), blocks.shape[1], dimension, tiled)[:, :, 0]


def all_to_all(blocks: np.ndarray, split_dimension: int, concat_dimension: int) -> np.ndarray:
    """Piece i of every participant's block along one dimension, on participant i, concatenated along another."""
    return _join(_pieces(blocks, blocks.shape[1], split_dimension, tiled=True), concat_dimension)


def permute(blocks: np.ndarray, pairs: Iterable[tuple[int, int]]) -> np.ndarray:
    """For each (source, destination), the source's block on the destination; zeros where nothing arrives."""
    sources, destinations = np.array(list(pairs), int).reshape(-1, 2).T
    result = np.zeros_like(blocks)
    result[:, destinations] = blocks[:, sources]
    return result


def broadcast(blocks: np.ndarray, root: int) -> np.ndarray:
    """One participant's block, on all of them."""
    return blocks[:, [root]]


def _pieces(blocks: np.ndarray, parts: int, dimension: int, tiled: bool) -> np.ndarray:
    """`[groups, senders, *block]` cut along a dimension of the block: `[groups, parts, senders, *piece]`."""
    at = dimension + 2
    size = blocks.shape[at]
    if size % parts if tiled else size != parts:
        raise InvalidGroups(f"dimension {dimension} of the block has size {size}: expected one piece per participant")
    places = np.arange(size).reshape(parts, -1) if tiled else np.arange(size)
    return np.moveaxis(np.take(blocks, places, axis=at), at, 1)


def _join(pieces: np.ndarray, dimension: int) -> np.ndarray:
    """`[groups, receivers, senders, *piece]` concatenated in the order of senders: `[groups, receivers, *block]`."""
    at = dimension + 2
    ordered = np.moveaxis(pieces, 2, at)
    return ordered.reshape(*ordered.shape[:at], ordered.shape[at] * ordered.shape[at + 1], *ordered.shape[at + 2 :])


class Slices:
    """The slices of rows of a ragged exchange: flat arrays, one entry per slice.

    Arguments:
        lists: input offsets, send sizes, output offsets and receive sizes: `[devices, entries]` each. Entry
            j * k + i of p * k is of slice i to, or from, participant j.
    """

    def __init__(self, lists: Sequence[np.ndarray], mesh: MeshCase, axes: Sequence[str], groups: Groups) -> None:
        columns: list[list[np.ndarray]] = [[] for _ in range(6)]
        for devices in process_groups(mesh, axes, groups):
            copies, p = devices.shape
            if lists[1].shape[1] % p:
                raise RaggedMetadata(
                    f"ragged_all_to_all: send_sizes has {lists[1].shape[1]} entries: expected a multiple of {p}, "
                    f"the participants over {tuple(axes)} on the mesh {mesh}"
                )
            start, size, target, announced = (x[devices].reshape(copies, p, p, -1).astype(np.int64) for x in lists)
            ends = np.broadcast_arrays(devices[:, :, None, None], devices[:, None, :, None], size)[:2]
            for column, x in zip(columns, (*ends, start, size, target, announced.swapaxes(1, 2)), strict=True):
                column.append(x.reshape(-1))
        self.source, self.destination, self.start, self.size, self.target, self.announced = map(np.concatenate, columns)

    def check(self, mesh: MeshCase, over: str, rows_in: int, rows_out: int) -> None:
        """Raises RaggedMetadata unless all lists agree, and every nonempty slice lies inside its buffers."""
        ends = self.start + self.size, self.target + self.size
        inside = (self.start >= 0) & (ends[0] <= rows_in) & (self.target >= 0) & (ends[1] <= rows_out)
        wrong = (self.size != self.announced) | (self.size < 0) | (self.size > 0) & ~inside
        if not wrong.any():
            return
        i = int(wrong.argmax())
        here, there = (device_name(mesh, int(x[i])) for x in (self.source, self.destination))
        start, size, target = (int(x[i]) for x in (self.start, self.size, self.target))
        if size != self.announced[i]:
            what = f"sends {size} rows to device {there}, which expects {self.announced[i]} (send_sizes and recv_sizes)"
        elif size < 0:
            what = f"sends {size} rows to device {there}: expected none or more"
        elif start < 0 or start + size > rows_in:
            what = f"sends rows [{start}, {start + size}) to device {there}: its operand has {rows_in} rows "
            what += "(input_offsets, send_sizes)"
        else:
            what = f"writes rows [{target}, {target + size}) of device {there}, whose output has {rows_out} rows "
            what += "(output_offsets, send_sizes)"
        raise RaggedMetadata(f"{over}: device {here} {what}")

    def rows(self, rows_in: int, rows_out: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Each row's place among all devices' operands, that among their outputs, and its sender."""
        within = np.arange(self.size.sum()) - np.repeat(np.cumsum(self.size) - self.size, self.size)
        source, destination, start, target = (
            np.repeat(x, self.size) for x in (self.source, self.destination, self.start, self.target)
        )
        return source * rows_in + start + within, destination * rows_out + target + within, source


def ragged_all_to_all(operand: np.ndarray, output: np.ndarray, slices: Slices, mesh: MeshCase, over: str) -> np.ndarray:
    """Every slice at its sender's offset in its receiver's output; all other rows are those of `output`.

    Operand and output are `[devices, rows, …]`; `over` is the exchange, for messages. Raises RaggedMetadata if the
    lists contradict each other, or a row is written twice.
    """
    rows_in, rows_out = operand.shape[1], output.shape[1]
    slices.check(mesh, over, rows_in, rows_out)
    here, there, sender = slices.rows(rows_in, rows_out)
    order = np.argsort(there, kind="stable")
    twice = np.flatnonzero(np.diff(there[order]) == 0)
    if len(twice):
        first, second = (device_name(mesh, int(sender[order[twice[0] + i]])) for i in (0, 1))
        device, row = divmod(int(there[order[twice[0]]]), rows_out)
        raise RaggedMetadata(
            f"{over}: devices {first} and {second} both write row {row} of device {device_name(mesh, device)} "
            "(output_offsets, send_sizes)"
        )
    result = output.reshape(len(output) * rows_out, *output.shape[2:]).copy()
    result[there] = operand.reshape(len(operand) * rows_in, *operand.shape[2:])[here]
    return result.reshape(output.shape)
