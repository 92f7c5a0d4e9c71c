"""All-gathers out of permutes: along a ring, along both ways of it, and in about log2 p steps.

p is the number of participants, n the bytes of the result. Sources: Thakur, Rabenseifner and Gropp,
"Optimization of Collective Communication Operations in MPICH", 2005 (ring, recursive doubling,
Bruck); Bruck et al., "Efficient Algorithms for All-to-All Communications in Multiport
Message-Passing Systems", 1997.

All of them: `[M_Y, …]` to `[M, …]`, typed varying, over one axis or a tuple of axes in any order,
for trees and for every dtype, with the arguments and the ValueErrors of `shardproof.impl.collectives.all_gather`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Shaped

from shardproof.impl.algorithms.pieces import (
    WAYS,
    Axes,
    Requirement,
    anywhere,
    distances,
    glue,
    halves,
    join,
    reorder,
    shift,
    swap,
)
from shardproof.impl.arguments import AxisName, check_axes, check_dimension, check_power_of_two
from shardproof.impl.collectives import Block, Blocks, axis_index, cast_varying
from shardproof.impl.indices import around

Gathered = Shaped[Array, "p ..."]
Algorithm = Callable[[Block, Axes], Gathered]


def ring_all_gather(x: Blocks, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Blocks:
    """Passes every block round the ring: p - 1 permutes of n/p bytes, the least that bandwidth allows.

    Raises:
        ValueError: for an unknown axis or a dimension out of range.
    """
    return _gather("ring_all_gather", ring, x, axis_name, axis, tiled)


def bidirectional_all_gather(x: Blocks, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Blocks:
    """Passes half of every block each way round the ring: p - 1 steps of two permutes of n/(2p) bytes.

    A block is halved along its longest dimension; one with a single element goes one way as a whole.

    Raises:
        ValueError: for an unknown axis or a dimension out of range.
    """
    return _gather("bidirectional_all_gather", bidirectional, x, axis_name, axis, tiled)


def shorter_way_all_gather(x: Blocks, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Blocks:
    """Passes every whole block the shorter way round the ring: p - 1 permutes of n/p bytes in floor(p/2) steps.

    Raises:
        ValueError: for an unknown axis or a dimension out of range.
    """
    return _gather("shorter_way_all_gather", shorter_way, x, axis_name, axis, tiled)


def recursive_doubling_all_gather(x: Blocks, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Blocks:
    """Exchanges all it holds with partners 1, 2, 4, … participants away: log2 p permutes, (p-1)n/p bytes in all.

    Raises:
        ValueError: for an unknown axis or a dimension out of range.
        NotImplementedError: unless p is a power of two.
    """
    return _gather("recursive_doubling_all_gather", doubling, x, axis_name, axis, tiled, check_power_of_two)


def bruck_all_gather(x: Blocks, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Blocks:
    """Fetches 1, 2, 4, … blocks, at last only those that are missing: ceil(log2 p) permutes, (p-1)n/p bytes in all.

    Raises:
        ValueError: for an unknown axis or a dimension out of range.
    """
    return _gather("bruck_all_gather", bruck, x, axis_name, axis, tiled)


def ring(block: Block, axes: Axes) -> Gathered:
    """`[…]` to `[p, …]` along a ring, in logical order."""
    return _rings([block], axes)[0]


def bidirectional(block: Block, axes: Axes) -> Gathered:
    """`[…]` to `[p, …]` along two rings, one each way."""
    parts, dimension = halves(block, 0)
    return glue(_rings(parts, axes), dimension + 1)


def shorter_way(block: Block, axes: Axes) -> Gathered:
    """`[…]` to `[p, …]`, every block from the side that it is nearer to."""
    p = lax.axis_size(axes)
    (rightward, _), (from_left, from_right) = _passed([block, block], axes, (p - 1) // 2)
    if p % 2 == 0:  # the block from the opposite side comes one way only
        from_left = jnp.concatenate([from_left, shift(rightward, axes, 1)[None]])
    return _by_index(jnp.concatenate([block[None], from_left, from_right[::-1]]), axes, 1)


def doubling(block: Block, axes: Axes) -> Gathered:
    """`[…]` to `[p, …]` by recursive doubling; `held[j]` is the block of participant `index ^ j`."""
    p, held = lax.axis_size(axes), block[None]
    for distance in distances(p):
        held = jnp.concatenate([held, swap(held, axes, distance)])
    return reorder(held, axis_index(axes) ^ jnp.arange(p))


def bruck(block: Block, axes: Axes) -> Gathered:
    """`[…]` to `[p, …]` by Bruck's algorithm; `held[j]` is the block of participant `index + j`."""
    p, held = lax.axis_size(axes), block[None]
    for distance in distances(p):
        held = jnp.concatenate([held, shift(held[: p - distance], axes, -distance)])
    return _by_index(held, axes, -1)


def _rings(parts: list[Block], axes: Axes) -> list[Gathered]:
    """Parts of a block, gathered along a ring each: the first rightward, the second leftward."""
    _, received = _passed(parts, axes, lax.axis_size(axes) - 1)
    held = [jnp.concatenate([part[None], blocks]) for part, blocks in zip(parts, received, strict=True)]
    return [_by_index(blocks, axes, way) for blocks, way in zip(held, WAYS, strict=False)]


def _passed(parts: list[Block], axes: Axes, steps: int) -> tuple[list[Block], list[Block]]:
    """Parts passed on for some steps, each its way: where they end up, and `[steps, …]` all that came by."""

    def step(moving: list[Block], _: None) -> tuple[list[Block], list[Block]]:
        moved = [shift(part, axes, way) for part, way in zip(moving, WAYS, strict=False)]
        return moved, moved

    return lax.scan(step, parts, length=steps)


def _by_index(held: Gathered, axes: Axes, way: int) -> Gathered:
    """Blocks in logical order, of which `held[i]` came i participants far, going `way`."""
    p = lax.axis_size(axes)
    return reorder(held, around(way * (axis_index(axes) - jnp.arange(p)), p))


def _gather(
    function: str,
    algorithm: Algorithm,
    x: Blocks,
    axis_name: AxisName,
    axis: int,
    tiled: bool,
    requires: Requirement = anywhere,
) -> Blocks:
    axes = check_axes(function, axis_name)

    def gather(leaf: Block) -> Block:
        dimension = check_dimension(function, "axis", axis, leaf.ndim + (not tiled))
        requires(function, axis_name)
        return join(algorithm(cast_varying(leaf, axes), axes), dimension, tiled)

    return jax.tree.map(gather, x)
