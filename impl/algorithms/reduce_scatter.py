"""Reduce-scatters out of permutes: along a ring, along both ways of it, and by recursive halving.

p is the number of participants, n the bytes of the operand. Sources: Thakur, Rabenseifner and Gropp, 2005;
Patarasuk and Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations", 2009.

All of them: `[M, …]` to `[M_Y, …]`, typed varying, over one axis or a tuple of axes in any order, for
trees and every numeric dtype, in which they add up, with the arguments and the ValueErrors of
`shardproof.impl.collectives.reduce_scatter`; `combine` may be another reduction of two blocks. Each is written for the
pieces of one block, `[p, …]` by destination to `[…]`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Shaped

from shardproof.impl.algorithms.pieces import (
    Axes,
    Combine,
    Requirement,
    anywhere,
    distances,
    glue,
    halves,
    named_after,
    reorder,
    shift,
    split,
    swap,
)
from shardproof.impl.arguments import (
    AxisName,
    check_axes,
    check_dimension,
    check_divides,
    check_power_of_two,
    check_varies,
)
from shardproof.impl.collectives import Block, Blocks, axis_index, cast_varying
from shardproof.impl.indices import around

Pieces = Shaped[Array, "p ..."]
Algorithm = Callable[[Pieces, Axes, Combine], Block]


def _algorithm(requires: Requirement = anywhere) -> Callable[[Algorithm], Callable[..., Blocks]]:
    """Decorate an algorithm of one block's pieces, to be one of trees with the arguments of a reduce-scatter."""

    def decorate(algorithm: Algorithm) -> Callable[..., Blocks]:
        function = algorithm.__name__

        def scatter(
            x: Blocks,
            axis_name: AxisName,
            *,
            scatter_dimension: int = 0,
            tiled: bool = False,
            combine: Combine = lax.add,
        ) -> Blocks:
            axes = check_axes(function, axis_name)
            p = lax.axis_size(axes)

            def scatter_leaf(leaf: Block) -> Block:
                dimension = check_dimension(function, "scatter_dimension", scatter_dimension, leaf.ndim)
                check_divides(function, "scatter_dimension", scatter_dimension, leaf.shape[dimension], p, tiled)
                check_varies(function, leaf, axes)
                requires(function, axis_name)
                return algorithm(split(cast_varying(leaf, axes), p, dimension, tiled), axes, combine)

            return jax.tree.map(scatter_leaf, x)

        return named_after(algorithm, scatter)

    return decorate


@_algorithm()
def ring_reduce_scatter(pieces: Pieces, axes: Axes, combine: Combine) -> Block:
    """Every piece goes round the ring once and is added to on its way: p - 1 permutes of n/p bytes.

    Raises:
        ValueError: for an unknown axis, a dimension out of range or not divisible, or `x` varying
            along only a part of `axis_name`.
    """
    own = _as_met(pieces, axes, 1)

    def step(total: Block, piece: Block) -> tuple[Block, None]:
        return combine(shift(total, axes, 1), piece), None

    return lax.scan(step, own[0], own[1:])[0]


@_algorithm()
def bidirectional_reduce_scatter(pieces: Pieces, axes: Axes, combine: Combine) -> Block:
    """Half of every piece goes each way round the ring: p - 1 steps of two permutes of n/(2p) bytes.

    A piece is halved along its longest dimension; one with a single element goes one way as a whole.

    Raises:
        ValueError: as `ring_reduce_scatter`.
    """
    parts, dimension = halves(pieces, 1)
    if len(parts) == 1:
        return ring_reduce_scatter(pieces, axes, combine=combine)
    first, second = _as_met(parts[0], axes, 1), _as_met(parts[1], axes, -1)

    def step(totals: tuple[Block, Block], own: tuple[Block, Block]) -> tuple[tuple[Block, Block], None]:
        right, left = shift(totals[0], axes, 1), shift(totals[1], axes, -1)
        return (combine(right, own[0]), combine(left, own[1])), None

    totals, _ = lax.scan(step, (first[0], second[0]), (first[1:], second[1:]))
    return glue(totals, dimension - 1)


@_algorithm(check_power_of_two)
def recursive_halving_reduce_scatter(pieces: Pieces, axes: Axes, combine: Combine) -> Block:
    """Exchanges halves with partners …, 4, 2, 1 participants away: log2 p permutes, (p-1)n/p bytes in all.

    Raises:
        ValueError: as `ring_reduce_scatter`.
        NotImplementedError: unless p is a power of two.
    """
    p = lax.axis_size(axes)
    held = reorder(pieces, axis_index(axes) ^ jnp.arange(p))  # held[j] is meant for participant index ^ j
    for distance in reversed(distances(p)):
        held = combine(held[:distance], swap(held[distance:], axes, distance))
    return held[0]


def _as_met(pieces: Pieces, axes: Axes, way: int) -> Pieces:
    """Pieces in the order in which their totals come by, going `way`: the neighbour's first, the own one last."""
    p = lax.axis_size(axes)
    return reorder(pieces, around(axis_index(axes) - way * jnp.arange(1, p + 1), p))
