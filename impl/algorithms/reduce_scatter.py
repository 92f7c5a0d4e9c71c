"""Reduce-scatters out of permutes: along a ring, along both ways of it, and by recursive halving.

p is the number of participants, n the bytes of the operand. Sources: Thakur, Rabenseifner and Gropp, 2005;
Patarasuk and Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations", 2009.

All of them: `[M, …]` to `[M_Y, …]`, typed varying, over one axis or a tuple of axes in any order, for
trees and every numeric dtype, in which they add up, with the arguments and the ValueErrors of
`shardproof.impl.collectives.reduce_scatter`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Shaped

from shardproof.impl.algorithms.pieces import (
    WAYS,
    Axes,
    Combine,
    Requirement,
    anywhere,
    distances,
    glue,
    halves,
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


def ring_reduce_scatter(x: Blocks, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False) -> Blocks:
    """Every piece goes round the ring once and is added to on its way: p - 1 permutes of n/p bytes.

    Raises:
        ValueError: for an unknown axis, a dimension out of range or not divisible, or `x` varying
            along only a part of `axis_name`.
    """
    return _scatter("ring_reduce_scatter", ring, x, axis_name, scatter_dimension, tiled)


def bidirectional_reduce_scatter(
    x: Blocks, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False
) -> Blocks:
    """Half of every piece goes each way round the ring: p - 1 steps of two permutes of n/(2p) bytes.

    A piece is halved along its longest dimension; one with a single element goes one way as a whole.

    Raises:
        ValueError: as `ring_reduce_scatter`.
    """
    return _scatter("bidirectional_reduce_scatter", bidirectional, x, axis_name, scatter_dimension, tiled)


def recursive_halving_reduce_scatter(
    x: Blocks, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False
) -> Blocks:
    """Exchanges halves with partners …, 4, 2, 1 participants away: log2 p permutes, (p-1)n/p bytes in all.

    Raises:
        ValueError: as `ring_reduce_scatter`.
        NotImplementedError: unless p is a power of two.
    """
    function = "recursive_halving_reduce_scatter"
    return _scatter(function, halving, x, axis_name, scatter_dimension, tiled, check_power_of_two)


def ring(pieces: Pieces, axes: Axes, combine: Combine) -> Block:
    """`[p, …]` to `[…]` along a ring: the own piece of all participants' pieces combined."""
    return _rings([pieces], axes, combine)[0]


def bidirectional(pieces: Pieces, axes: Axes, combine: Combine) -> Block:
    """`[p, …]` to `[…]` along two rings, one each way."""
    parts, dimension = halves(pieces, 1)
    return glue(_rings(parts, axes, combine), dimension - 1)


def halving(pieces: Pieces, axes: Axes, combine: Combine) -> Block:
    """`[p, …]` to `[…]` by recursive halving; `held[j]` is meant for participant `index ^ j`."""
    p = lax.axis_size(axes)
    held = reorder(pieces, axis_index(axes) ^ jnp.arange(p))
    for distance in reversed(distances(p)):
        held = combine(held[:distance], swap(held[distance:], axes, distance))
    return held[0]


def _rings(parts: list[Pieces], axes: Axes, combine: Combine) -> list[Block]:
    """Parts of all pieces, reduced along a ring each: the first rightward, the second leftward."""
    ordered = [_as_met(pieces, axes, way) for pieces, way in zip(parts, WAYS, strict=False)]

    def step(totals: list[Block], own: list[Block]) -> tuple[list[Block], None]:
        arrived = [shift(total, axes, way) for total, way in zip(totals, WAYS, strict=False)]
        return [combine(total, piece) for total, piece in zip(arrived, own, strict=True)], None

    return lax.scan(step, [pieces[0] for pieces in ordered], [pieces[1:] for pieces in ordered])[0]


def _as_met(pieces: Pieces, axes: Axes, way: int) -> Pieces:
    """Pieces in the order in which their totals come by, going `way`: the neighbour's first, the own one last."""
    p = lax.axis_size(axes)
    return reorder(pieces, around(axis_index(axes) - way * jnp.arange(1, p + 1), p))


def _scatter(
    function: str,
    algorithm: Algorithm,
    x: Blocks,
    axis_name: AxisName,
    scatter_dimension: int,
    tiled: bool,
    requires: Requirement = anywhere,
) -> Blocks:
    axes = check_axes(function, axis_name)
    p = lax.axis_size(axes)

    def scatter(leaf: Block) -> Block:
        dimension = check_dimension(function, "scatter_dimension", scatter_dimension, leaf.ndim)
        check_divides(function, "scatter_dimension", scatter_dimension, leaf.shape[dimension], p, tiled)
        check_varies(function, leaf, axes)
        requires(function, axis_name)
        return algorithm(split(cast_varying(leaf, axes), p, dimension, tiled), axes, lax.add)

    return jax.tree.map(scatter, x)
