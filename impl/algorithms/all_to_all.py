"""All-to-alls out of permutes: pairwise, by Bruck's algorithm, and in two phases over two axes.

p is the number of participants, n the bytes of the operand. Sources: Thakur, Rabenseifner and Gropp, 2005;
Bruck et al., "Efficient Algorithms for All-to-All Communications in Multiport Message-Passing
Systems", 1997.

All of them: `[M_Y, N]` to `[M, N_Y]`, typed varying, over one axis or a tuple of axes in any order, for
trees and for every dtype, with the arguments and the ValueErrors of `shardproof.impl.collectives.all_to_all`. Each is
written for the pieces of one block, `[p, …]` by destination to `[p, …]` by source.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Shaped

from shardproof.impl.algorithms.pieces import (
    Axes,
    Requirement,
    anywhere,
    distances,
    join,
    named_after,
    reorder,
    shift,
    split,
)
from shardproof.impl.arguments import AxisName, check_axes, check_axis_count, check_dimension, check_divides
from shardproof.impl.collectives import Block, Blocks, axis_index, cast_varying
from shardproof.impl.indices import around

Pieces = Shaped[Array, "p ..."]
Algorithm = Callable[[Pieces, Axes], Pieces]


def _algorithm(requires: Requirement = anywhere) -> Callable[[Algorithm], Callable[..., Blocks]]:
    """Decorate an algorithm of one block's pieces, to be one of trees with the arguments of an all-to-all."""

    def decorate(algorithm: Algorithm) -> Callable[..., Blocks]:
        function = algorithm.__name__

        def exchange(
            x: Blocks, axis_name: AxisName, *, split_axis: int, concat_axis: int, tiled: bool = False
        ) -> Blocks:
            axes = check_axes(function, axis_name)
            p = lax.axis_size(axes)

            def exchange_leaf(leaf: Block) -> Block:
                source = check_dimension(function, "split_axis", split_axis, leaf.ndim)
                target = check_dimension(function, "concat_axis", concat_axis, leaf.ndim)
                check_divides(function, "split_axis", split_axis, leaf.shape[source], p, tiled)
                requires(function, axis_name)
                return join(algorithm(split(cast_varying(leaf, axes), p, source, tiled), axes), target, tiled)

            return jax.tree.map(exchange_leaf, x)

        return named_after(algorithm, exchange)

    return decorate


def _check_two_axes(function: str, axis_name: AxisName) -> None:
    check_axis_count(function, axis_name, (2,))


@_algorithm()
def pairwise_all_to_all(pieces: Pieces, axes: Axes) -> Pieces:
    """Sends every piece straight to where it belongs: p - 1 permutes of n/p bytes, one for every distance.

    Raises:
        ValueError: for an unknown axis, or a dimension out of range or not divisible.
    """
    p, index = lax.axis_size(axes), axis_index(axes)
    to_go = reorder(pieces, around(index + jnp.arange(p), p))
    arrived = [to_go[0], *(shift(to_go[distance], axes, distance) for distance in range(1, p))]
    return reorder(jnp.stack(arrived), around(index - jnp.arange(p), p))


@_algorithm()
def bruck_all_to_all(pieces: Pieces, axes: Axes) -> Pieces:
    """Sends every piece along the binary digits of its distance: ceil(log2 p) permutes of up to n/2 bytes.

    Raises:
        ValueError: for an unknown axis, or a dimension out of range or not divisible.
    """
    p, index = lax.axis_size(axes), axis_index(axes)
    held = reorder(pieces, around(index + jnp.arange(p), p))  # held[j] is j participants away from where it starts
    for distance in distances(p):
        moving = np.flatnonzero(np.arange(p) & distance)
        held = held.at[moving].set(shift(held[moving], axes, distance), unique_indices=True)
    return reorder(held, around(index - jnp.arange(p), p))


@_algorithm(_check_two_axes)
def two_phase_all_to_all(pieces: Pieces, axes: Axes) -> Pieces:
    """Exchanges along the first of two axes, of a participants, then the second, of b: (a-1)n/a + (b-1)n/b bytes.

    Raises:
        ValueError: for an unknown axis, or a dimension out of range or not divisible.
        NotImplementedError: unless the axis tuple has two axes.
    """
    first, second = axes
    grid = pieces.reshape(lax.axis_size(first), lax.axis_size(second), *pieces.shape[1:])
    by_row = pairwise_all_to_all(grid, first, split_axis=0, concat_axis=0)
    by_column = pairwise_all_to_all(jnp.swapaxes(by_row, 0, 1), second, split_axis=0, concat_axis=0)
    return jnp.swapaxes(by_column, 0, 1).reshape(pieces.shape)
