"""Collectives by hand, out of permutes alone: classical algorithms round a ring, by halving and doubling, on trees.

Each has the signature, the meaning and the errors of its collective in `shardproof.impl.collectives`, over one axis or
a tuple of axes in any order, for trees of blocks. All are typed varying, since nothing casts varying back to invariant.
p is the number of participants, n the bytes of the result of an all-gather, of the operand of any other collective.

Each is written for one block: an all-gather `[…]` to `[p, …]` in logical order; a reduce-scatter `[p, …]` by
destination to `[…]`, of every numeric dtype, added up in it, or by another reduction of two blocks, `combine`; an
all-reduce and a broadcast `[…]` to `[…]`. Sums of bool count in int32, means of exact dtypes are float32.

Sources: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005 (rings,
Bruck, halving, doubling); Patarasuk and Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations",
2009; Chan et al., "Collective communication: theory, practice, and experience", 2007 (trees, broadcasts).
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int, Shaped

from shardproof.impl.arguments import (
    Axes,
    AxisName,
    check_axes,
    check_dimension,
    check_divides,
    check_index,
    check_op,
    check_power_of_two,
    check_varies,
)
from shardproof.impl.collectives import Block, Blocks, axis_index, cast_varying
from shardproof.impl.indices import around, remainder
from shardproof.impl.rings import send, shift

Pieces = Shaped[Array, "p ..."]
Combine = Callable[[Block, Block], Block]


def _set_name(algorithm: Callable[..., Any], function: Callable[..., Blocks]) -> Callable[..., Blocks]:
    """A function of trees of blocks, with the name and the docstring of the algorithm of one block that it runs."""
    functools.update_wrapper(function, algorithm, ("__module__", "__name__", "__qualname__", "__doc__"), ())
    del function.__dict__["__wrapped__"]  # whose signature is another
    return function


def _all_gather(algorithm: Callable[[Block, Axes], Pieces]) -> Callable[..., Blocks]:
    """Decorate an algorithm of one block, to be one of trees with the arguments of an all-gather."""
    function = algorithm.__name__

    def gather(x: Blocks, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Blocks:
        axes = check_axes(function, axis_name)

        def gather_leaf(leaf: Block) -> Block:
            dimension = check_dimension(function, "axis", axis, leaf.ndim + (not tiled))
            return join(algorithm(cast_varying(leaf, axes), axes), dimension, tiled)

        return jax.tree.map(gather_leaf, x)

    return _set_name(algorithm, gather)


@_all_gather
def ring_all_gather(block: Block, axes: Axes) -> Pieces:
    """Passes every block round the ring: p - 1 permutes of n/p bytes, the least that bandwidth allows."""

    def step(moving: Block, _: None) -> tuple[Block, Block]:
        moved = shift(moving, axes, 1)
        return moved, moved

    _, received = lax.scan(step, block, length=lax.axis_size(axes) - 1)
    return _by_index(jnp.concatenate([block[None], received]), axes, 1)


@_all_gather
def bruck_all_gather(block: Block, axes: Axes) -> Pieces:
    """Fetches 1, 2, 4, … blocks, at last only those that are missing: ceil(log2 p) permutes, (p-1)n/p bytes in all."""
    p, held = lax.axis_size(axes), block[None]
    for distance in distances(p):  # held[j] is the block of participant index + j
        held = jnp.concatenate([held, shift(held[: p - distance], axes, -distance)])
    return _by_index(held, axes, -1)


def _by_index(held: Pieces, axes: Axes, way: int) -> Pieces:
    """Blocks in logical order, of which `held[i]` came i participants far, going `way`."""
    p = lax.axis_size(axes)
    return reorder(held, around(way * (axis_index(axes) - jnp.arange(p)), p))


def _broadcast(algorithm: Callable[[Block, Axes, int], Block]) -> Callable[..., Blocks]:
    """Decorate an algorithm of one block, to be one of trees with the arguments of a broadcast."""
    function = algorithm.__name__

    def broadcast(x: Blocks, axis_name: AxisName, *, root: int = 0) -> Blocks:
        axes = check_axes(function, axis_name)
        check_index(function, "root", root, lax.axis_size(axes))
        return jax.tree.map(lambda leaf: algorithm(cast_varying(leaf, axes), axes, root), x)

    return _set_name(algorithm, broadcast)


@_broadcast
def tree_broadcast(block: Block, axes: Axes, root: int) -> Block:
    """Participants that have the block send it 1, 2, 4, … participants on: ceil(log2 p) permutes of n bytes."""
    p = lax.axis_size(axes)
    for distance in distances(p):
        holders = range(min(distance, p - distance))
        arrived = send(block, axes, [((root + i) % p, (root + i + distance) % p) for i in holders])
        rank = _rank(axes, root)
        block = jnp.where((distance <= rank) & (rank < 2 * distance), arrived, block)
    return block


@_broadcast
def scatter_all_gather_broadcast(block: Block, axes: Axes, root: int) -> Block:
    """Scatters the block down a tree and gathers it along a ring: 2(p-1)n/p bytes, ceil(log2 p) + p - 1 permutes.

    Elements are padded to a multiple of p.
    """
    p = lax.axis_size(axes)
    # held[j] is the piece of the participant j behind this one; the root's alone mean something before others arrive
    held = jnp.roll(cut(block, p), -root, axis=0)
    for distance in reversed(distances(p)):
        senders = range(0, p - distance, 2 * distance)
        arrived = send(held[distance:], axes, [((root + i) % p, (root + i + distance) % p) for i in senders])
        padded = jnp.pad(arrived, ((0, distance - len(arrived)), (0, 0)))  # shorter where p is no power of two
        held = jnp.where(remainder(_rank(axes, root), 2 * distance) == distance, padded, held[:distance])
    return uncut(ring_all_gather(held[0], axes), block.shape)


def _rank(axes: Axes, root: int) -> Int[Array, ""]:
    """This participant's distance from the root."""
    return around(axis_index(axes) - root, lax.axis_size(axes))


COMBINE: dict[str, Combine] = {"sum": lax.add, "mean": lax.add, "max": lax.max, "min": lax.min}
"""Reductions of two blocks to one; means are divided at the end."""


def _reduce_scatter(algorithm: Callable[[Pieces, Axes, Combine], Block]) -> Callable[..., Blocks]:
    """Decorate an algorithm of one block's pieces, to be one of trees with the arguments of a reduce-scatter."""
    function = algorithm.__name__

    def scatter(
        x: Blocks, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False, combine: Combine = lax.add
    ) -> Blocks:
        axes = check_axes(function, axis_name)
        p = lax.axis_size(axes)

        def scatter_leaf(leaf: Block) -> Block:
            dimension = check_dimension(function, "scatter_dimension", scatter_dimension, leaf.ndim)
            check_divides(function, "scatter_dimension", scatter_dimension, leaf.shape[dimension], p, tiled)
            check_varies(function, leaf, axes)
            return algorithm(split(cast_varying(leaf, axes), p, dimension, tiled), axes, combine)

        return jax.tree.map(scatter_leaf, x)

    return _set_name(algorithm, scatter)


@_reduce_scatter
def ring_reduce_scatter(pieces: Pieces, axes: Axes, combine: Combine) -> Block:
    """Every piece goes round the ring once and is added to on its way: p - 1 permutes of n/p bytes."""
    p = lax.axis_size(axes)
    # in the order in which their totals come by: the piece of the neighbour first, the own one last
    own = reorder(pieces, around(axis_index(axes) - jnp.arange(1, p + 1), p))

    def step(total: Block, piece: Block) -> tuple[Block, None]:
        return combine(shift(total, axes, 1), piece), None

    return lax.scan(step, own[0], own[1:])[0]


@_reduce_scatter
def recursive_halving_reduce_scatter(pieces: Pieces, axes: Axes, combine: Combine) -> Block:
    """Exchanges halves with partners …, 4, 2, 1 participants away: log2 p permutes, (p-1)n/p bytes in all.

    Raises:
        NotImplementedError: unless p is a power of two.
    """
    check_power_of_two("recursive_halving_reduce_scatter", axes)
    p = lax.axis_size(axes)
    held = reorder(pieces, axis_index(axes) ^ jnp.arange(p))  # held[j] is for participant index ^ j
    for distance in reversed(distances(p)):
        held = combine(held[:distance], swap(held[distance:], axes, distance))
    return held[0]


def _all_reduce(algorithm: Callable[[Block, Axes, Combine], Block]) -> Callable[..., Blocks]:
    """Decorate an algorithm of one block, to be one of trees with the arguments of an all-reduce."""
    function = algorithm.__name__

    def reduce(x: Blocks, axis_name: AxisName, *, op: str = "sum") -> Blocks:
        axes = check_axes(function, axis_name)
        check_op(function, op, COMBINE)

        def reduce_leaf(leaf: Block) -> Block:
            check_varies(function, leaf, axes)
            counts = leaf.dtype == jnp.bool_ and op in ("sum", "mean")
            block = cast_varying(leaf.astype(jnp.int32) if counts else leaf, axes)
            total = algorithm(block, axes, COMBINE[op])
            return total / lax.axis_size(axes) if op == "mean" else total

        return jax.tree.map(reduce_leaf, x)

    return _set_name(algorithm, reduce)


@_all_reduce
def ring_all_reduce(block: Block, axes: Axes, combine: Combine) -> Block:
    """A reduce-scatter and an all-gather along a ring: 2(p-1) permutes of n/p bytes."""
    piece = ring_reduce_scatter(cut(block, lax.axis_size(axes)), axes, combine=combine)
    return uncut(ring_all_gather(piece, axes), block.shape)


@_all_reduce
def recursive_doubling_all_reduce(block: Block, axes: Axes, combine: Combine) -> Block:
    """Exchanges its total with partners 1, 2, 4, … participants away: log2 p permutes of n bytes.

    Raises:
        NotImplementedError: unless p is a power of two.
    """
    check_power_of_two("recursive_doubling_all_reduce", axes)
    for distance in distances(lax.axis_size(axes)):
        block = combine(block, swap(block, axes, distance))
    return block


def split(x: Block, parts: int, dimension: int, tiled: bool) -> Pieces:
    """A block as its pieces `[p, *piece]` along a dimension, which goes away unless it is `tiled`."""
    kept = [x.shape[dimension] // parts] if tiled else []
    pieces = x.reshape(*x.shape[:dimension], parts, *kept, *x.shape[dimension + 1 :])
    return jnp.moveaxis(pieces, dimension, 0)


def join(blocks: Pieces, dimension: int, tiled: bool) -> Block:
    """Blocks `[p, *block]` concatenated along a dimension of theirs (`tiled`), or stacked along a new one."""
    stacked = jnp.moveaxis(blocks, 0, dimension)
    if not tiled:
        return stacked
    p, *block = blocks.shape
    return stacked.reshape(*block[:dimension], p * block[dimension], *block[dimension + 1 :])


def cut(x: Block, parts: int) -> Shaped[Array, "p n"]:
    """The elements of `x` as equal pieces `[p, n]`, the last of them padded with zeros."""
    return jnp.pad(x.ravel(), (0, -x.size % parts)).reshape(parts, -(-x.size // parts))


def uncut(pieces: Block, shape: Sequence[int]) -> Block:
    """The inverse of `cut`: the array of that shape, without padding."""
    return pieces.ravel()[: math.prod(shape)].reshape(shape)


def reorder(blocks: Pieces, order: Int[Array, " p"]) -> Pieces:
    """Blocks in another order, one of this device's own: `order` is a permutation of range(p)."""
    return blocks.at[order].get(mode="promise_in_bounds", unique_indices=True)


def swap(x: Block, axes: Axes, distance: int) -> Block:
    """The block of the partner, whose index differs in the one bit that `distance` is."""
    return send(x, axes, [(i, i ^ distance) for i in range(lax.axis_size(axes))])


def distances(p: int) -> list[int]:
    """The powers of two below p, in ascending order."""
    return [1 << bit for bit in range((p - 1).bit_length())]
