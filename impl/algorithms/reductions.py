"""Reduce-scatters and all-reduces out of permutes: along a ring, by halving, by doubling, on trees.

p is the number of participants, n the bytes of the operand. Sources: Patarasuk and Yuan, "Bandwidth Optimal
All-reduce Algorithms for Clusters of Workstations", 2009 (ring); Rabenseifner, "Optimization of Collective Reduction
Operations", 2004; Thakur, Rabenseifner and Gropp, 2005 (halving, doubling); Chan et al., "Collective communication:
theory, practice, and experience", 2007 (tree).

All of them are typed varying, over one axis or a tuple of axes in any order, for trees, with the arguments and the
ValueErrors of their collective in `shardproof.impl.collectives`, and add up in the dtype of the block.

Reduce-scatters: `[M, …]` to `[M_Y, …]`, of every numeric dtype; `combine` may be another reduction of two blocks. Each
is written for the pieces of one block, `[p, …]` by destination to `[…]`.

All-reduces: `[…]` varying to `[…]`, since nothing casts varying back to invariant, of every dtype and shape (elements
are filled up to a multiple of p). Sums of bool count in int32, means of exact dtypes are float32.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from shardproof.impl.algorithms.transfers import (
    Combine,
    Pieces,
    bruck_all_gather,
    cut,
    distances,
    named_after,
    reorder,
    ring_all_gather,
    split,
    swap,
    tree_broadcast,
    uncut,
)
from shardproof.impl.arguments import (
    AxisName,
    check_axes,
    check_dimension,
    check_divides,
    check_op,
    check_power_of_two,
    check_varies,
)
from shardproof.impl.collectives import Block, Blocks, axis_index, cast_varying
from shardproof.impl.indices import remainder
from shardproof.impl.rings import around, send, shift

COMBINE: dict[str, Combine] = {"sum": lax.add, "mean": lax.add, "max": lax.max, "min": lax.min}
"""How two blocks are reduced to one; means are divided at the end."""


def _reduce_scatter(algorithm: Callable[[Pieces, AxisName, Combine], Block]) -> Callable[..., Blocks]:
    """Decorate an algorithm of one block's pieces, to be one of trees with the arguments of a reduce-scatter."""
    function = algorithm.__name__

    def scatter(
        x: Blocks, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False, combine: Combine = lax.add
    ) -> Blocks:
        axes = check_axes(function, axis_name)
        given = axis_name if isinstance(axis_name, str) else axes  # as messages show it
        p = lax.axis_size(axes)

        def scatter_leaf(leaf: Block) -> Block:
            dimension = check_dimension(function, "scatter_dimension", scatter_dimension, leaf.ndim)
            check_divides(function, "scatter_dimension", scatter_dimension, leaf.shape[dimension], p, tiled)
            check_varies(function, leaf, axes)
            return algorithm(split(cast_varying(leaf, axes), p, dimension, tiled), given, combine)

        return jax.tree.map(scatter_leaf, x)

    return named_after(algorithm, scatter)


@_reduce_scatter
def ring_reduce_scatter(pieces: Pieces, axes: AxisName, combine: Combine) -> Block:
    """Every piece goes round the ring once and is added to on its way: p - 1 permutes of n/p bytes.

    Raises:
        ValueError: for an unknown axis, a dimension out of range or not divisible, or `x` varying
            along only a part of `axis_name`.
    """
    own = _as_met(pieces, axes, 1)

    def step(total: Block, piece: Block) -> tuple[Block, None]:
        return combine(shift(total, axes, 1), piece), None

    return lax.scan(step, own[0], own[1:])[0]


@_reduce_scatter
def recursive_halving_reduce_scatter(pieces: Pieces, axes: AxisName, combine: Combine) -> Block:
    """Exchanges halves with partners …, 4, 2, 1 participants away: log2 p permutes, (p-1)n/p bytes in all.

    Raises:
        ValueError: as `ring_reduce_scatter`.
        NotImplementedError: unless p is a power of two.
    """
    check_power_of_two("recursive_halving_reduce_scatter", axes)
    p = lax.axis_size(axes)
    held = reorder(pieces, axis_index(axes) ^ jnp.arange(p))  # held[j] is meant for participant index ^ j
    for distance in reversed(distances(p)):
        held = combine(held[:distance], swap(held[distance:], axes, distance))
    return held[0]


def _as_met(pieces: Pieces, axes: AxisName, way: int) -> Pieces:
    """Pieces in the order in which their totals come by, going `way`: the neighbour's first, the own one last."""
    p = lax.axis_size(axes)
    return reorder(pieces, around(axis_index(axes) - way * jnp.arange(1, p + 1), p))


def _all_reduce(algorithm: Callable[[Block, AxisName, Combine], Block]) -> Callable[..., Blocks]:
    """Decorate an algorithm of one block, to be one of trees with the arguments of an all-reduce."""
    function = algorithm.__name__

    def reduce(x: Blocks, axis_name: AxisName, *, op: str = "sum") -> Blocks:
        axes = check_axes(function, axis_name)
        given = axis_name if isinstance(axis_name, str) else axes  # as messages show it
        check_op(function, op, COMBINE)

        def reduce_leaf(leaf: Block) -> Block:
            check_varies(function, leaf, axes)
            counts = leaf.dtype == jnp.bool_ and op in ("sum", "mean")
            block = cast_varying(leaf.astype(jnp.int32) if counts else leaf, axes)
            total = algorithm(block, given, COMBINE[op])
            return total / lax.axis_size(axes) if op == "mean" else total

        return jax.tree.map(reduce_leaf, x)

    return named_after(algorithm, reduce)


@_all_reduce
def ring_all_reduce(block: Block, axes: AxisName, combine: Combine) -> Block:
    """A reduce-scatter and an all-gather along a ring: 2(p-1) permutes of n/p bytes.

    Raises:
        ValueError: for an unknown axis or op, or `x` varying along only a part of `axis_name`.
    """
    piece = ring_reduce_scatter(cut(block, lax.axis_size(axes)), axes, combine=combine)
    return uncut(ring_all_gather(piece, axes), block.shape)


@_all_reduce
def rabenseifner_all_reduce(block: Block, axes: AxisName, combine: Combine) -> Block:
    """A reduce-scatter by halving and an all-gather of 1, 2, 4, … blocks: 2 log2 p permutes, 2(p-1)n/p bytes in all.

    Raises:
        ValueError: as `ring_all_reduce`.
        NotImplementedError: unless p is a power of two.
    """
    check_power_of_two("rabenseifner_all_reduce", axes)
    piece = recursive_halving_reduce_scatter(cut(block, lax.axis_size(axes)), axes, combine=combine)
    return uncut(bruck_all_gather(piece, axes), block.shape)


@_all_reduce
def recursive_doubling_all_reduce(block: Block, axes: AxisName, combine: Combine) -> Block:
    """Exchanges its total with partners 1, 2, 4, … participants away: log2 p permutes of n bytes.

    Raises:
        ValueError: as `ring_all_reduce`.
        NotImplementedError: unless p is a power of two.
    """
    check_power_of_two("recursive_doubling_all_reduce", axes)
    for distance in distances(lax.axis_size(axes)):
        block = combine(block, swap(block, axes, distance))
    return block


@_all_reduce
def tree_all_reduce(block: Block, axes: AxisName, combine: Combine) -> Block:
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
