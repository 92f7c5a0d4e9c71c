"""All-gathers out of permutes: along a ring, along both ways of it, and in about log2 p steps.

p is the number of participants, n the bytes of the result. Sources: Thakur, Rabenseifner and Gropp,
"Optimization of Collective Communication Operations in MPICH", 2005 (ring, recursive doubling,
Bruck); Bruck et al., "Efficient Algorithms for All-to-All Communications in Multiport
Message-Passing Systems", 1997.

All of them: `[M_Y, …]` to `[M, …]`, typed varying, over one axis or a tuple of axes in any order,
for trees and for every dtype, with the arguments and the ValueErrors of `shardproof.impl.collectives.all_gather`.
Each is written for one block, `[…]` to `[p, …]` in logical order.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Shaped

from shardproof.impl.algorithms.pieces import (
    Axes,
    Requirement,
    anywhere,
    distances,
    glue,
    halves,
    join,
    named_after,
    reorder,
    shift,
    swap,
)
from shardproof.impl.arguments import AxisName, check_axes, check_dimension, check_power_of_two
from shardproof.impl.collectives import Block, Blocks, axis_index, cast_varying
from shardproof.impl.indices import around

Gathered = Shaped[Array, "p ..."]
Algorithm = Callable[[Block, Axes], Gathered]


def _algorithm(requires: Requirement = anywhere) -> Callable[[Algorithm], Callable[..., Blocks]]:
    """Decorate an algorithm of one block, to be one of trees with the arguments of an all-gather."""

    def decorate(algorithm: Algorithm) -> Callable[..., Blocks]:
        function = algorithm.__name__

        def gather(x: Blocks, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Blocks:
            axes = check_axes(function, axis_name)

            def gather_leaf(leaf: Block) -> Block:
                dimension = check_dimension(function, "axis", axis, leaf.ndim + (not tiled))
                requires(function, axis_name)
                return join(algorithm(cast_varying(leaf, axes), axes), dimension, tiled)

            return jax.tree.map(gather_leaf, x)

        return named_after(algorithm, gather)

    return decorate


@_algorithm()
def ring_all_gather(block: Block, axes: Axes) -> Gathered:
    """Passes every block round the ring: p - 1 permutes of n/p bytes, the least that bandwidth allows.

    Raises:
        ValueError: for an unknown axis or a dimension out of range.
    """

    def step(moving: Block, _: None) -> tuple[Block, Block]:
        moved = shift(moving, axes, 1)
        return moved, moved

    _, received = lax.scan(step, block, length=lax.axis_size(axes) - 1)
    return _by_index(jnp.concatenate([block[None], received]), axes, 1)


@_algorithm()
def bidirectional_all_gather(block: Block, axes: Axes) -> Gathered:
    """Passes half of every block each way round the ring: p - 1 steps of two permutes of n/(2p) bytes.

    A block is halved along its longest dimension; one with a single element goes one way as a whole.

    Raises:
        ValueError: for an unknown axis or a dimension out of range.
    """
    parts, dimension = halves(block, 0)
    if len(parts) == 1:
        return ring_all_gather(block, axes)
    right, left = parts
    from_left, from_right = _passed_both_ways(right, left, axes, lax.axis_size(axes) - 1)
    first = _by_index(jnp.concatenate([right[None], from_left]), axes, 1)
    second = _by_index(jnp.concatenate([left[None], from_right]), axes, -1)
    return glue([first, second], dimension + 1)


@_algorithm()
def shorter_way_all_gather(block: Block, axes: Axes) -> Gathered:
    """Passes every whole block the shorter way round the ring: p - 1 permutes of n/p bytes in floor(p/2) steps.

    Raises:
        ValueError: for an unknown axis or a dimension out of range.
    """
    p = lax.axis_size(axes)
    from_left, from_right = _passed_both_ways(block, block, axes, (p - 1) // 2)
    if p % 2 == 0:  # the block from the opposite side comes one way only
        last = from_left[-1] if p > 2 else block
        from_left = jnp.concatenate([from_left, shift(last, axes, 1)[None]])
    return _by_index(jnp.concatenate([block[None], from_left, from_right[::-1]]), axes, 1)


@_algorithm(check_power_of_two)
def recursive_doubling_all_gather(block: Block, axes: Axes) -> Gathered:
    """Exchanges all it holds with partners 1, 2, 4, … participants away: log2 p permutes, (p-1)n/p bytes in all.

    Raises:
        ValueError: for an unknown axis or a dimension out of range.
        NotImplementedError: unless p is a power of two.
    """
    p, held = lax.axis_size(axes), block[None]
    for distance in distances(p):  # held[j] is the block of participant index ^ j
        held = jnp.concatenate([held, swap(held, axes, distance)])
    return reorder(held, axis_index(axes) ^ jnp.arange(p))


@_algorithm()
def bruck_all_gather(block: Block, axes: Axes) -> Gathered:
    """Fetches 1, 2, 4, … blocks, at last only those that are missing: ceil(log2 p) permutes, (p-1)n/p bytes in all.

    Raises:
        ValueError: for an unknown axis or a dimension out of range.
    """
    p, held = lax.axis_size(axes), block[None]
    for distance in distances(p):  # held[j] is the block of participant index + j
        held = jnp.concatenate([held, shift(held[: p - distance], axes, -distance)])
    return _by_index(held, axes, -1)


def _passed_both_ways(right: Block, left: Block, axes: Axes, steps: int) -> tuple[Gathered, Gathered]:
    """All that comes by in so many steps: of blocks that go rightward, and of others that go leftward."""

    def step(moving: tuple[Block, Block], _: None) -> tuple[tuple[Block, Block], tuple[Block, Block]]:
        moved = shift(moving[0], axes, 1), shift(moving[1], axes, -1)
        return moved, moved

    return lax.scan(step, (right, left), length=steps)[1]


def _by_index(held: Gathered, axes: Axes, way: int) -> Gathered:
    """Blocks in logical order, of which `held[i]` came i participants far, going `way`."""
    p = lax.axis_size(axes)
    return reorder(held, around(way * (axis_index(axes) - jnp.arange(p)), p))
