"""All-reduces out of permutes: as a reduce-scatter and an all-gather, by doubling, down and up a tree, over a torus.

p is the number of participants, n the bytes of a block. Sources: Patarasuk and Yuan, "Bandwidth Optimal
All-reduce Algorithms for Clusters of Workstations", 2009 (ring); Rabenseifner, "Optimization of
Collective Reduction Operations", 2004; Thakur, Rabenseifner and Gropp, 2005 (doubling); Chan et al.,
"Collective communication: theory, practice, and experience", 2007 (tree, axis by axis).

All of them: `[…]` varying to `[…]`, typed varying, since nothing casts varying back to invariant;
over one axis or a tuple of axes in any order, for trees and for every dtype and shape (elements are
filled up to a multiple of p), with the arguments and the ValueErrors of `shardproof.impl.collectives.all_reduce`.
They add up in the dtype of the block: sums of bool count in int32, means of exact dtypes are float32. Each is written
for one block.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from shardproof.impl.algorithms.all_gather import (
    bidirectional_all_gather,
    recursive_doubling_all_gather,
    ring_all_gather,
)
from shardproof.impl.algorithms.broadcast import tree_broadcast
from shardproof.impl.algorithms.pieces import (
    Axes,
    Combine,
    Requirement,
    anywhere,
    cut,
    distances,
    named_after,
    send,
    swap,
    uncut,
)
from shardproof.impl.algorithms.reduce_scatter import (
    bidirectional_reduce_scatter,
    recursive_halving_reduce_scatter,
    ring_reduce_scatter,
)
from shardproof.impl.arguments import AxisName, check_axes, check_axis_count, check_op, check_power_of_two, check_varies
from shardproof.impl.collectives import Block, Blocks, axis_index, cast_varying
from shardproof.impl.indices import remainder

Algorithm = Callable[[Block, Axes, Combine], Block]

COMBINE: dict[str, Combine] = {"sum": lax.add, "mean": lax.add, "max": lax.max, "min": lax.min}
"""How two blocks are reduced to one; means are divided at the end."""


def _algorithm(requires: Requirement = anywhere) -> Callable[[Algorithm], Callable[..., Blocks]]:
    """Decorate an algorithm of one block, to be one of trees with the arguments of an all-reduce."""

    def decorate(algorithm: Algorithm) -> Callable[..., Blocks]:
        function = algorithm.__name__

        def reduce(x: Blocks, axis_name: AxisName, *, op: str = "sum") -> Blocks:
            axes = check_axes(function, axis_name)
            check_op(function, op, COMBINE)

            def reduce_leaf(leaf: Block) -> Block:
                check_varies(function, leaf, axes)
                requires(function, axis_name)
                counts = leaf.dtype == jnp.bool_ and op in ("sum", "mean")
                block = cast_varying(leaf.astype(jnp.int32) if counts else leaf, axes)
                total = algorithm(block, axes, COMBINE[op])
                return total / lax.axis_size(axes) if op == "mean" else total

            return jax.tree.map(reduce_leaf, x)

        return named_after(algorithm, reduce)

    return decorate


def _check_two_axes(function: str, axis_name: AxisName) -> None:
    check_axis_count(function, axis_name, (2,))


@_algorithm()
def ring_all_reduce(block: Block, axes: Axes, combine: Combine) -> Block:
    """A reduce-scatter and an all-gather along a ring: 2(p-1) permutes of n/p bytes.

    Raises:
        ValueError: for an unknown axis or op, or `x` varying along only a part of `axis_name`.
    """
    piece = ring_reduce_scatter(cut(block, lax.axis_size(axes)), axes, combine=combine)
    return uncut(ring_all_gather(piece, axes), block.shape)


@_algorithm()
def bidirectional_all_reduce(block: Block, axes: Axes, combine: Combine) -> Block:
    """A reduce-scatter and an all-gather along both ways of the ring: 2(p-1) steps of two permutes of n/(2p) bytes.

    Raises:
        ValueError: as `ring_all_reduce`.
    """
    piece = bidirectional_reduce_scatter(cut(block, lax.axis_size(axes)), axes, combine=combine)
    return uncut(bidirectional_all_gather(piece, axes), block.shape)


@_algorithm(check_power_of_two)
def rabenseifner_all_reduce(block: Block, axes: Axes, combine: Combine) -> Block:
    """A reduce-scatter by halving and an all-gather by doubling: 2 log2 p permutes, 2(p-1)n/p bytes in all.

    Raises:
        ValueError: as `ring_all_reduce`.
        NotImplementedError: unless p is a power of two.
    """
    piece = recursive_halving_reduce_scatter(cut(block, lax.axis_size(axes)), axes, combine=combine)
    return uncut(recursive_doubling_all_gather(piece, axes), block.shape)


@_algorithm(check_power_of_two)
def recursive_doubling_all_reduce(block: Block, axes: Axes, combine: Combine) -> Block:
    """Exchanges its total with partners 1, 2, 4, … participants away: log2 p permutes of n bytes.

    Raises:
        ValueError: as `ring_all_reduce`.
        NotImplementedError: unless p is a power of two.
    """
    for distance in distances(lax.axis_size(axes)):
        block = combine(block, swap(block, axes, distance))
    return block


@_algorithm()
def tree_all_reduce(block: Block, axes: Axes, combine: Combine) -> Block:
    """Reduces down a binomial tree to participant 0, which broadcasts up the tree: 2 ceil(log2 p) permutes of n bytes.

    Where nothing arrives, what a permute leaves there is not combined.

    Raises:
        ValueError: as `ring_all_reduce`.
    """
    p, index = lax.axis_size(axes), axis_index(axes)
    for distance in distances(p):
        arrived = send(block, axes, [(i, i - distance) for i in range(distance, p, 2 * distance)])
        receives = (remainder(index, 2 * distance) == 0) & (index + distance < p)
        block = jnp.where(receives, combine(block, arrived), block)
    return tree_broadcast(block, axes)


@_algorithm(_check_two_axes)
def torus_all_reduce(block: Block, axes: Axes, combine: Combine) -> Block:
    """Scatters along the first axis (a participants), then the second (b), and gathers back: 2(a-1) + 2(b-1) permutes.

    Of the 2(p-1)n/p bytes, 2(b-1)n/p go along the second axis: the slower one of the two should be named last.

    Raises:
        ValueError: as `ring_all_reduce`.
        NotImplementedError: unless the axis tuple has two axes.
    """
    first, second = axes
    grid = cut(block, lax.axis_size(axes)).reshape(lax.axis_size(first), lax.axis_size(second), -1)
    row = ring_reduce_scatter(grid, first, combine=combine)
    row = ring_all_gather(ring_reduce_scatter(row, second, combine=combine), second)
    return uncut(ring_all_gather(row, first), block.shape)
