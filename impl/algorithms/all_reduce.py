"""All-reduces out of permutes: as a reduce-scatter and an all-gather, by doubling, down and up a tree, over tori.

p is the number of participants, n the bytes of a block. Sources: Patarasuk and Yuan, "Bandwidth Optimal
All-reduce Algorithms for Clusters of Workstations", 2009 (ring); Rabenseifner, "Optimization of
Collective Reduction Operations", 2004; Thakur, Rabenseifner and Gropp, 2005 (doubling); Chan et al.,
"Collective communication: theory, practice, and experience", 2007 (tree, axis by axis).

All of them: `[…]` varying to `[…]`, typed varying, since nothing casts varying back to invariant;
over one axis or a tuple of axes in any order, for trees and for every dtype and shape (elements are
filled up to a multiple of p), with the arguments and the ValueErrors of `shardproof.impl.collectives.all_reduce`.
They add up in the dtype of the block: sums of bool count in int32, means of exact dtypes are float32.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from shardproof.impl.algorithms import all_gather, broadcast, reduce_scatter
from shardproof.impl.algorithms.pieces import Axes, Combine, Requirement, anywhere, cut, distances, send, swap, uncut
from shardproof.impl.arguments import AxisName, check_axes, check_axis_count, check_op, check_power_of_two, check_varies
from shardproof.impl.collectives import Block, Blocks, axis_index, cast_varying
from shardproof.impl.indices import remainder

Algorithm = Callable[[Block, Axes, Combine], Block]

COMBINE: dict[str, Combine] = {"sum": lax.add, "mean": lax.add, "max": lax.max, "min": lax.min}
"""How two blocks are reduced to one; means are divided at the end."""


def ring_all_reduce(x: Blocks, axis_name: AxisName, *, op: str = "sum") -> Blocks:
    """A reduce-scatter and an all-gather along a ring: 2(p-1) permutes of n/p bytes.

    Raises:
        ValueError: for an unknown axis or op, or `x` varying along only a part of `axis_name`.
    """
    return _reduce("ring_all_reduce", ring, x, axis_name, op)


def bidirectional_all_reduce(x: Blocks, axis_name: AxisName, *, op: str = "sum") -> Blocks:
    """A reduce-scatter and an all-gather along both ways of the ring: 2(p-1) steps of two permutes of n/(2p) bytes.

    Raises:
        ValueError: as `ring_all_reduce`.
    """
    return _reduce("bidirectional_all_reduce", bidirectional, x, axis_name, op)


def rabenseifner_all_reduce(x: Blocks, axis_name: AxisName, *, op: str = "sum") -> Blocks:
    """A reduce-scatter by halving and an all-gather by doubling: 2 log2 p permutes, 2(p-1)n/p bytes in all.

    Raises:
        ValueError: as `ring_all_reduce`.
        NotImplementedError: unless p is a power of two.
    """
    return _reduce("rabenseifner_all_reduce", rabenseifner, x, axis_name, op, check_power_of_two)


def recursive_doubling_all_reduce(x: Blocks, axis_name: AxisName, *, op: str = "sum") -> Blocks:
    """Exchanges its total with partners 1, 2, 4, … participants away: log2 p permutes of n bytes.

    Raises:
        ValueError: as `ring_all_reduce`.
        NotImplementedError: unless p is a power of two.
    """
    return _reduce("recursive_doubling_all_reduce", doubling, x, axis_name, op, check_power_of_two)


def tree_all_reduce(x: Blocks, axis_name: AxisName, *, op: str = "sum") -> Blocks:
    """Reduces down a binomial tree to participant 0, which broadcasts up the tree: 2 ceil(log2 p) permutes of n bytes.

    Raises:
        ValueError: as `ring_all_reduce`.
    """
    return _reduce("tree_all_reduce", tree, x, axis_name, op)


def torus_all_reduce(x: Blocks, axis_name: AxisName, *, op: str = "sum") -> Blocks:
    """Scatters along the first axis (a participants), then the second (b), and gathers back: 2(a-1) + 2(b-1) permutes.

    Of the 2(p-1)n/p bytes, 2(b-1)n/p go along the second axis.

    Raises:
        ValueError: as `ring_all_reduce`.
        NotImplementedError: unless the axis tuple has two axes.
    """
    return _reduce("torus_all_reduce", torus, x, axis_name, op, _check_two_axes)


def hierarchical_all_reduce(x: Blocks, axis_name: AxisName, *, op: str = "sum") -> Blocks:
    """Scatters along the last axis, reduces along those before it, and gathers back: little goes along the first.

    Raises:
        ValueError: as `ring_all_reduce`.
        NotImplementedError: unless the axis tuple has two or three axes.
    """
    return _reduce("hierarchical_all_reduce", hierarchical, x, axis_name, op, _check_levels)


def _scattered_and_gathered(scatter: reduce_scatter.Algorithm, gather: all_gather.Algorithm) -> Algorithm:
    def reduce(block: Block, axes: Axes, combine: Combine) -> Block:
        piece = scatter(cut(block, lax.axis_size(axes)), axes, combine)
        return uncut(gather(piece, axes), block.shape)

    return reduce


ring = _scattered_and_gathered(reduce_scatter.ring, all_gather.ring)
bidirectional = _scattered_and_gathered(reduce_scatter.bidirectional, all_gather.bidirectional)
rabenseifner = _scattered_and_gathered(reduce_scatter.halving, all_gather.doubling)


def doubling(block: Block, axes: Axes, combine: Combine) -> Block:
    """`[…]` to `[…]` by recursive doubling."""
    for distance in distances(lax.axis_size(axes)):
        block = combine(block, swap(block, axes, distance))
    return block


def tree(block: Block, axes: Axes, combine: Combine) -> Block:
    """`[…]` to `[…]` through participant 0; where nothing arrives, what a permute leaves there is not combined."""
    p, index = lax.axis_size(axes), axis_index(axes)
    for distance in distances(p):
        arrived = send(block, axes, [(i, i - distance) for i in range(distance, p, 2 * distance)])
        receives = (remainder(index, 2 * distance) == 0) & (index + distance < p)
        block = jnp.where(receives, combine(block, arrived), block)
    return broadcast.tree(block, axes, 0)


def torus(block: Block, axes: Axes, combine: Combine) -> Block:
    """`[…]` to `[…]` over an axis of a participants and one of b, in pieces `[a, b, …]`."""
    first, second = axes
    grid = cut(block, lax.axis_size(axes)).reshape(lax.axis_size(first), lax.axis_size(second), -1)
    row = reduce_scatter.ring(grid, (first,), combine)
    row = all_gather.ring(reduce_scatter.ring(row, (second,), combine), (second,))
    return uncut(all_gather.ring(row, (first,)), block.shape)


def hierarchical(block: Block, axes: Axes, combine: Combine) -> Block:
    """`[…]` to `[…]`: of every level, only one piece per participant goes on to the next."""
    *outer, inner = axes
    piece = reduce_scatter.ring(cut(block, lax.axis_size(inner)), (inner,), combine)
    if outer:
        piece = hierarchical(piece, tuple(outer), combine)
    return uncut(all_gather.ring(piece, (inner,)), block.shape)


def _check_two_axes(function: str, axis_name: AxisName) -> None:
    check_axis_count(function, axis_name, (2,))


def _check_levels(function: str, axis_name: AxisName) -> None:
    check_axis_count(function, axis_name, (2, 3))


def _reduce(
    function: str,
    algorithm: Algorithm,
    x: Blocks,
    axis_name: AxisName,
    op: str,
    requires: Requirement = anywhere,
) -> Blocks:
    axes = check_axes(function, axis_name)
    check_op(function, op, COMBINE)

    def reduce(leaf: Block) -> Block:
        check_varies(function, leaf, axes)
        requires(function, axis_name)
        counts = leaf.dtype == jnp.bool_ and op in ("sum", "mean")
        block = cast_varying(leaf.astype(jnp.int32) if counts else leaf, axes)
        total = algorithm(block, axes, COMBINE[op])
        return total / lax.axis_size(axes) if op == "mean" else total

    return jax.tree.map(reduce, x)
