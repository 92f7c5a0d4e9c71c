"""Broadcasts out of permutes: down a binomial tree, or as a scatter followed by an all-gather.

p is the number of participants, n the bytes of a block. Sources: Thakur, Rabenseifner and Gropp, 2005; Chan
et al., "Collective communication: theory, practice, and experience", 2007.

All of them: `[…]` to `[…]`, typed varying, over one axis or a tuple of axes in any order, for trees and
for every dtype, with the arguments and the ValueErrors of `shardproof.impl.collectives.broadcast`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from shardproof.impl.algorithms.all_gather import ring_all_gather
from shardproof.impl.algorithms.pieces import Axes, cut, distances, named_after, send, uncut
from shardproof.impl.arguments import AxisName, check_axes, check_index
from shardproof.impl.collectives import Block, Blocks, axis_index, cast_varying
from shardproof.impl.indices import around, remainder

Algorithm = Callable[[Block, Axes, int], Block]


def _algorithm(algorithm: Algorithm) -> Callable[..., Blocks]:
    """Decorate an algorithm of one block, to be one of trees with the arguments of a broadcast."""
    function = algorithm.__name__

    def broadcast(x: Blocks, axis_name: AxisName, *, root: int = 0) -> Blocks:
        axes = check_axes(function, axis_name)
        check_index(function, "root", root, lax.axis_size(axes))
        return jax.tree.map(lambda leaf: algorithm(cast_varying(leaf, axes), axes, root), x)

    return named_after(algorithm, broadcast)


@_algorithm
def tree_broadcast(block: Block, axes: Axes, root: int) -> Block:
    """Those who have the block send it 1, 2, 4, … participants on: ceil(log2 p) permutes of n bytes.

    Raises:
        ValueError: for an unknown axis or a root out of range.
    """
    p = lax.axis_size(axes)
    for distance in distances(p):
        holders = range(min(distance, p - distance))
        arrived = send(block, axes, [((root + i) % p, (root + i + distance) % p) for i in holders])
        rank = _rank(axes, root)
        block = jnp.where((distance <= rank) & (rank < 2 * distance), arrived, block)
    return block


@_algorithm
def scatter_all_gather_broadcast(block: Block, axes: Axes, root: int) -> Block:
    """Scatters the block down a tree and gathers it along a ring: 2(p-1)n/p bytes, ceil(log2 p) + p - 1 permutes.

    Any block will do: its elements are filled up to a multiple of p.

    Raises:
        ValueError: for an unknown axis or a root out of range.
    """
    p = lax.axis_size(axes)
    # held[j] is the piece of the participant j behind this one; the root's alone mean something before others arrive
    held = jnp.roll(cut(block, p), -root, axis=0)
    for distance in reversed(distances(p)):
        senders = range(0, p - distance, 2 * distance)
        arrived = send(held[distance:], axes, [((root + i) % p, (root + i + distance) % p) for i in senders])
        filled = jnp.pad(arrived, ((0, distance - len(arrived)), (0, 0)))  # shorter where p is no power of two
        held = jnp.where(remainder(_rank(axes, root), 2 * distance) == distance, filled, held[:distance])
    return uncut(ring_all_gather(held[0], axes), block.shape)


def _rank(axes: Axes, root: int) -> Int[Array, ""]:
    """How many participants this one comes after the root."""
    return around(axis_index(axes) - root, lax.axis_size(axes))
