"""A ring that reduces a product in quarters of pieces, of which there are two pairs: one goes each way of a pair."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from shardproof.impl.algorithms.pieces import WAYS, shift
from shardproof.impl.collective_matmul.operands import UNROLLED, Axes, Result, counted, places_back, unwritten, waiting
from shardproof.impl.collective_matmul.reduced import Reducing, alternating
from shardproof.impl.collectives import Block


def in_pairs(reducing: Reducing, axes: Axes) -> Result:
    """While the sums of a pair travel, one each way, the other pair's terms are computed, and added to theirs.

    Each term waits for its sum and for the pair before, and not for the other one of its pair; each part that is sent
    for the one before it on its way. So it travels beside the other pair's terms, all of them, where a half of
    `alternating` travels beside one. Of a piece of fewer rows than there are parts it is `alternating`.
    """
    p, target, sizes = lax.axis_size(axes), places_back(axes), reducing.parts(2 * len(WAYS))
    if len(sizes) < 2 * len(WAYS):
        return alternating(reducing, axes)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    pairs = ((0, 1), (2, 3))

    def term(i: int, away: Array, before: Sequence[Block]) -> Block:
        return reducing.later(target(WAYS[i % 2] * away) * reducing.rows + starts[i], sizes[i], before)

    def total(i: int, away: Array, arrived: Block, behind: Sequence[Block]) -> Block:
        own = term(i, away, (arrived, *behind))
        return arrived.astype(own.dtype) + own

    def sent(sums: Sequence[Block], before: Sequence[Block]) -> list[Block]:
        ready = [waiting(one, before[-2 + i :][:1]) for i, one in enumerate(sums)]
        return [shift(one, axes, way) for one, way in zip(ready, WAYS, strict=True)]

    def step(carry: tuple[list[Block], list[Block]], away: Array) -> tuple[tuple[list[Block], list[Block]], None]:
        arrived, behind = carry
        moved = [*arrived]
        for pair in pairs:
            behind = [total(i, away, arrived[i], behind).astype(reducing.sums) for i in pair]
            moved += sent(behind, moved)
        return (moved[len(sizes) :], behind), None

    one, last = jnp.asarray(1), jnp.asarray(p)
    behind: list[Block] = []
    arrived: list[Block] = []
    for pair in pairs:
        behind = [term(i, one, behind).astype(reducing.sums) for i in pair]
        arrived += behind if p == 1 else sent(behind, arrived)
    if p == 1:
        return jnp.concatenate(arrived, reducing.dimension)
    arrived, behind = lax.scan(step, (arrived, behind), counted(2, p), unroll=p <= UNROLLED)[0]
    whole: list[Block] = []
    for pair in pairs:
        for i, done in [(i, total(i, last, arrived[i], whole or behind).astype(reducing.dtype)) for i in pair]:
            into = whole[0] if whole else unwritten(reducing.shape, done)
            whole = [lax.dynamic_update_slice_in_dim(into, done, starts[i], reducing.dimension)]
    return whole[0]
