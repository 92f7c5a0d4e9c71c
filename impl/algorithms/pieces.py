"""What the algorithms are made of: blocks cut into pieces and joined again, put in order, and sent.

*Blocks* are `[p, *block]`: one block per participant, by its logical index.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int, Shaped

from shardproof.impl.arguments import AxisName
from shardproof.impl.collective_matmul.rings import send
from shardproof.impl.collectives import Block

Pieces = Shaped[Array, "p ..."]
Combine = Callable[[Block, Block], Block]

Public = TypeVar("Public", bound=Callable[..., Any])


def named_after(algorithm: Callable[..., Any], function: Public) -> Public:
    """A function of trees of blocks, with the name and the docstring of the algorithm of one block that it runs."""
    functools.update_wrapper(function, algorithm, ("__module__", "__name__", "__qualname__", "__doc__"), ())
    del function.__dict__["__wrapped__"]  # whose signature is another
    return function


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
    """The elements of `x` as equal pieces `[p, n]`, the last of them filled up with zeros."""
    return jnp.pad(x.ravel(), (0, -x.size % parts)).reshape(parts, -(-x.size // parts))


def uncut(pieces: Block, shape: Sequence[int]) -> Block:
    """The inverse of `cut`: the array of that shape, without what was filled up."""
    return pieces.ravel()[: math.prod(shape)].reshape(shape)


def halves(x: Block, lead: int) -> tuple[list[Block], int]:
    """`x` cut in two along the longest dimension behind `lead` others, and that dimension; one part where it is 1.

    The first half has one row more where their number is odd.
    """
    sides = x.shape[lead:]
    rows = max(sides, default=1)
    if rows < 2:
        return [x], lead
    dimension = lead + sides.index(rows)
    return jnp.split(x, [rows - rows // 2], axis=dimension), dimension


def glue(parts: Sequence[Block], dimension: int) -> Block:
    """The inverse of `halves`."""
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, dimension)


def reorder(blocks: Pieces, order: Int[Array, " p"]) -> Pieces:
    """Blocks in another order, one of this device's own: `order` is a permutation of range(p)."""
    return blocks.at[order].get(mode="promise_in_bounds", unique_indices=True)


def swap(x: Block, axes: AxisName, distance: int) -> Block:
    """The block of the partner, whose index differs in the one bit that `distance` is."""
    return send(x, axes, [(i, i ^ distance) for i in range(lax.axis_size(axes))])


def distances(p: int) -> list[int]:
    """The powers of two below p, in ascending order."""
    return [1 << bit for bit in range((p - 1).bit_length())]
