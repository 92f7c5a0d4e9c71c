"""The type of a result on explicit axes, `float32[8@dp,4]`, from the types of the operands.

A type has the mesh axes that shard each dimension, in their order. A result is typed dimension by dimension: where
several dimensions of operands become one, it has the axes on which those that are sharded agree (JAX, "Explicit
sharding"). No axis may be in two dimensions. Where that leaves no type, or more than one, the operation is refused
unless the type of its result is given.

JAX refuses whatever is refused here; where it refuses more, a rule says so.
"""

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardproof.oracles.layout import Entries, Spec, shard, spec_entries
from shardproof.oracles.mesh import MeshCase

Dimensions = tuple[int, ...]
Pair = tuple[Dimensions, Dimensions]
"""Dimensions of the left operand, and those of the right one that go with them."""


class Refused(Exception):
    """There is no type for the result, or more than one."""


class Ambiguous(Refused):
    """A sum over a dimension that both operands shard equally: the result may be sharded over these axes, or not."""


@dataclass(frozen=True)
class ShardedType:
    """The type of an array: `float32[8@dp,4]`."""

    shape: tuple[int, ...]  # its global shape
    spec: Entries  # of every dimension the axes that shard it, the last one varying fastest
    dtype: str = "float32"  # the name of its dtype

    def __post_init__(self) -> None:
        names = [name for axes in self.spec for name in axes]
        if len(set(names)) != len(names):
            raise Refused(f"{self}: an axis shards two dimensions")

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(_dimension, self.shape, self.spec))}]"


def elementwise(*operands: ShardedType) -> ShardedType:
    """Dimensions are matched from the back, as NumPy does it; one of size 1 is as long as the others.

    Where two of them are sharded over different axes, or over the same in another order, it is refused: no layout is
    nearer to one than to the other.
    """
    rank = max(x.rank for x in operands)
    shapes = [(1,) * (rank - x.rank) + x.shape for x in operands]
    specs = [((),) * (rank - x.rank) + x.spec for x in operands]
    agreed = tuple(_agreed(entries) for entries in zip(*specs, strict=True))
    return ShardedType(np.broadcast_shapes(*shapes), agreed, operands[0].dtype)


def reduction(x: ShardedType, dimensions: Collection[int], *, keepdims: bool = False) -> ShardedType:
    """The dimensions that are left are sharded as before; what is kept of a reduced one has one element.

    A dimension that is reduced may be sharded: the result is the whole sum, or maximum, on all devices.
    """
    if keepdims:
        shape = tuple(1 if i in dimensions else n for i, n in enumerate(x.shape))
        return replace(x, shape=shape, spec=tuple(() if i in dimensions else a for i, a in enumerate(x.spec)))
    return _picked(x, [i for i in range(x.rank) if i not in dimensions])


def transposed(x: ShardedType, permutation: Sequence[int]) -> ShardedType:
    """Dimension i of the result is dimension `permutation[i]`, with its axes."""
    return _picked(x, permutation)


def broadcast(x: ShardedType, shape: tuple[int, ...]) -> ShardedType:
    """New dimensions, in front, are not sharded, nor are those that had one element; the others are as before."""
    return ShardedType(shape, ((),) * (len(shape) - x.rank) + x.spec, x.dtype)


def contraction(lhs: ShardedType, rhs: ShardedType, contracted: Pair, batch: Pair = ((), ())) -> ShardedType:
    """A product of arrays, summed over the contracted dimensions: batch, what is left of lhs, then of rhs.

    What is left is sharded as before, and batch dimensions as both operands agree. A contracted dimension that one
    operand shards is no obstacle: the sum is whole. Where both are sharded equally every device has a part of the sum,
    and the result could be sharded over these axes or be the same along them: that is Ambiguous, and needs
    `out_sharding`. Where they are sharded differently no device has the parts for a product, and it is Refused.

    JAX 0.12 refuses a batch dimension that one operand shards alone as well; JAX 0.10 takes the axes of lhs there.
    """
    kept_lhs = [i for i in range(lhs.rank) if i not in (*contracted[0], *batch[0])]
    kept_rhs = [i for i in range(rhs.rank) if i not in (*contracted[1], *batch[1])]
    both = tuple(_agreed([lhs.spec[i], rhs.spec[j]]) for i, j in zip(*batch, strict=True))
    summed = [_agreed([lhs.spec[i], rhs.spec[j]]) for i, j in zip(*contracted, strict=True)]
    if any(axes and lhs.spec[i] == rhs.spec[j] for axes, i, j in zip(summed, *contracted, strict=True)):
        raise Ambiguous(f"{lhs} and {rhs}: both shard what is contracted, {contracted}")
    shape = [lhs.shape[i] for i in batch[0]] + [lhs.shape[i] for i in kept_lhs] + [rhs.shape[j] for j in kept_rhs]
    spec = (*both, *(lhs.spec[i] for i in kept_lhs), *(rhs.spec[j] for j in kept_rhs))
    return ShardedType(tuple(shape), spec, lhs.dtype)


def matmul(lhs: ShardedType, rhs: ShardedType) -> ShardedType:
    """`[B, D] @ [D, F] -> [B, F]`: B and F are sharded as they were."""
    return contraction(lhs, rhs, ((1,), (0,)))


def resharded(x: ShardedType, spec: Spec, mesh: MeshCase) -> ShardedType:
    """The given type."""
    try:
        entries = spec_entries(spec, x.rank, mesh)
    except ValueError as error:
        raise Refused(str(error)) from error
    if any(n % mesh.axis_size(axes) for n, axes in zip(x.shape, entries, strict=True)):
        raise Refused(f"{ShardedType(x.shape, entries)} on {mesh}: expected the axes to divide their dimensions")
    return replace(x, spec=entries)


def reshaped(x: ShardedType, shape: tuple[int, ...], mesh: MeshCase) -> ShardedType:
    """Dimensions of one element aside, one dimension is split, or several adjacent ones are merged; else it is refused.

    Other dimensions are sharded as before. The axes of a dimension that is split are divided among the parts in their
    order, so that every device holds the elements that it held. A merged dimension has the axes of all in their order,
    if none that is not sharded is in front of one that is. (Unless the devices' parts have one index of all but the
    last of them, the elements change places.) An array that is not sharded at all may be reshaped to anything.

    An axis of one device shards nothing: if a dimension is split or merged, or has one element, it may be dropped.
    """
    if not any(x.spec):
        return ShardedType(shape, ((),) * len(shape), x.dtype)
    long = [i for i, n in enumerate(x.shape) if n != 1]
    found: list[tuple[str, ...]] = []
    pairs = list(_pairs([x.shape[i] for i in long], [n for n in shape if n != 1]))
    if sum(len(old) != 1 or len(new) != 1 for old, new in pairs) > 1:
        raise Refused(f"{x} to {shape}: expected one dimension to be split, or several to be merged into one")
    at = iter(long)
    for old, new in pairs:
        entries = [x.spec[next(at)] for _ in old]
        if len(old) == len(new) == 1:
            found += entries
        elif len(old) == 1:
            found += _split(entries[0], new, mesh, f"{x} to {shape}")
        elif len(new) == 1:
            found.append(_merged(entries, f"{x} to {shape}"))
        else:
            raise Refused(f"{x} to {shape}: {old} to {new} is neither a split nor a merge")
    left = iter(found)
    return ShardedType(shape, tuple(() if n == 1 else next(left) for n in shape), x.dtype)


def _agreed(entries: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The axes of those that are sharded, if they are all the same."""
    sharded = {axes for axes in entries if axes}
    if len(sharded) > 1:
        raise Refused(f"{entries}: expected dimensions that are sharded equally, or not at all")
    return sharded.pop() if sharded else ()


def _picked(x: ShardedType, dimensions: Sequence[int]) -> ShardedType:
    return replace(x, shape=tuple(x.shape[i] for i in dimensions), spec=tuple(x.spec[i] for i in dimensions))


def _pairs(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """The shortest runs of dimensions, from the front, that hold as many elements."""
    if not old and not new:
        return
    lengths = itertools.product(range(1, len(old) + 1), range(1, len(new) + 1))
    i, j = min((i, j) for i, j in lengths if math.prod(old[:i]) == math.prod(new[:j]))
    yield old[:i], new[:j]
    yield from _pairs(old[i:], new[j:])


def _split(axes: tuple[str, ...], sizes: Sequence[int], mesh: MeshCase, given: str) -> Entries:
    """The division of the axes, in their order, among parts of these sizes that leaves every element where it was."""
    whole = np.arange(math.prod(sizes))
    held = shard(whole, mesh, (axes,)).reshape(mesh.size, -1)
    for cuts in itertools.combinations_with_replacement(range(len(axes), -1, -1), len(sizes) - 1):
        edges = [0, *sorted(cuts), len(axes)]
        entries = tuple(axes[start:end] for start, end in itertools.pairwise(edges))
        if any(n % mesh.axis_size(entry) for n, entry in zip(sizes, entries, strict=True)):
            continue
        if np.array_equal(shard(whole.reshape(sizes), mesh, entries).reshape(mesh.size, -1), held):
            return entries
    raise Refused(f"{given}: no division of {axes} among parts of {sizes} leaves every element where it is")


def _merged(entries: Sequence[tuple[str, ...]], given: str) -> tuple[str, ...]:
    """The axes of all of them, in their order."""
    sharded = [bool(axes) for axes in entries]
    if sharded != sorted(sharded, reverse=True):
        raise Refused(f"{given}: expected no dimension that is not sharded in front of one that is merged with it")
    return tuple(name for axes in entries for name in axes)


def _dimension(size: int, axes: tuple[str, ...]) -> str:
    names = axes[0] if len(axes) == 1 else f"({','.join(axes)})"
    return f"{size}@{names}" if axes else str(size)
