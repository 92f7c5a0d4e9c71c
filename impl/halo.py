"""Halo exchange: every participant's block with the edges of its neighbours attached, as stencils need them.

The array is a circle: behind the last participant's rows come those of the first.
"""

import jax.numpy as jnp
from jax import lax

from shardproof.impl.arguments import AxisName, check_axes, check_dimension, refuse
from shardproof.impl.collectives import Block, cast_varying, ring_shift


def halo_exchange(x: Block, axis_name: AxisName, *, before: int, after: int, axis: int = 0) -> Block:
    """`[N_Y, …]` to `[before + N_Y + after, …]`, typed varying: sends only the rows that are missing, each once.

    With n rows in a block and p participants, d in [1, p), the one d places behind sends
    `min(n, tail + head)` rows, `tail = max(0, before - (d - 1) n)` and `head = max(0, after - (p - d - 1) n)`: in one
    permute of its block where that is n rows, and otherwise in a permute of each of the two that is not empty.

    Arguments:
        before: the number of rows attached in front, of the participants before this one, wrapping round; in [0, p n].
        after: the number of rows attached behind; in [0, p n].
        axis: the dimension that is sharded; negative counts from the back.
    """
    axes = check_axes("halo_exchange", axis_name)
    axis = check_dimension("halo_exchange", "axis", axis, x.ndim)
    x, p, n = cast_varying(x, axes), lax.axis_size(axes), x.shape[axis]
    for argument, rows in (("before", before), ("after", after)):
        if not 0 <= rows <= p * n:
            expected = f"an integer in [0, {p * n}], at most the rows of all blocks along dimension {axis}"
            refuse("halo_exchange", argument, rows, expected)
    tails, heads = _neighbour_rows(before, n, p), _neighbour_rows(after, n, p)
    in_front: list[Block] = []
    behind: list[tuple[int, Block]] = []
    for distance in range(1, p + 1):  # to the participant that many places behind, and p - distance places ahead
        ahead = (p - distance - 1) % p + 1  # the way round is p places, in either direction
        tail, head = tails[distance - 1], heads[ahead - 1]
        if tail + head >= n:
            block = ring_shift(x, axes, offset=distance) if n and distance < p else x
            last, first = _last(block, tail, axis), _first(block, head, axis)
        else:
            last, first = (
                ring_shift(rows, axes, offset=distance) if rows.size and distance < p else rows
                for rows in (_last(x, tail, axis), _first(x, head, axis))
            )
        in_front += [last] if tail else []
        behind += [(ahead, first)] if head else []
    nearest_first = [rows for _, rows in sorted(behind, key=lambda pair: pair[0])]
    return jnp.concatenate([*in_front[::-1], x, *nearest_first], axis)


def _neighbour_rows(rows: int, n: int, p: int) -> list[int]:
    """The rows that each of the participants 1, 2, …, p places away has of `rows` in one direction."""
    return [min(n, max(0, rows - i * n)) for i in range(p)]


def _last(block: Block, rows: int, axis: int) -> Block:
    return lax.slice_in_dim(block, block.shape[axis] - rows, block.shape[axis], axis=axis)


def _first(block: Block, rows: int, axis: int) -> Block:
    return lax.slice_in_dim(block, 0, rows, axis=axis)
