"""A ring that reduces a product in quarters of pieces, of which there are two pairs: one goes each way of a pair."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from shardproof.impl.algorithms.pieces import WAYS, shift
from shardproof.impl.collective_matmul.operands import UNROLLED, Axes, Result, counted, places_back, unwritten, waiting
from shardproof.impl.collective_matmul.reduced import Reducing, alternating
from shardproof.impl.collectives import Block

Pair = Sequence[Block]
"""A block that goes rightward, and one that goes leftward."""


def in_pairs(reducing: Reducing, axes: Axes) -> Result:
    """While the sums of a pair travel, one each way, the other pair's terms are computed, and added to theirs.

    Each term waits for its sum and for the pair before, and not for the other one of its pair; each part that is sent
    for the one before it on its way. So it travels beside the other pair's terms, all of them, where a half of
    `alternating` travels beside one, and nothing is exposed where links take as long as products. Of one participant,
    or a piece of fewer rows than there are parts, it is `alternating`.
    """
    p, target, sizes = lax.axis_size(axes), places_back(axes), reducing.parts(2 * len(WAYS))
    if p == 1 or len(sizes) < 2 * len(WAYS):
        return alternating(reducing, axes)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    first, second = (0, 1), (2, 3)

    def term(i: int, away: Array, before: Sequence[Block]) -> Block:
        return reducing.later(target(WAYS[i % 2] * away) * reducing.rows + starts[i], sizes[i], before)

    def totals(pair: tuple[int, int], away: Array, arrived: Pair, behind: Sequence[Block]) -> Pair:
        terms = [term(i, away, (one, *behind)) for i, one in zip(pair, arrived, strict=True)]
        return [one.astype(own.dtype) + own for one, own in zip(arrived, terms, strict=True)]

    def rounded(pair: Pair) -> Pair:
        return [one.astype(reducing.sums) for one in pair]

    def sent(pair: Pair, before: Pair) -> Pair:
        ready = [waiting(one, [ahead]) for one, ahead in zip(pair, before, strict=True)]
        return [shift(one, axes, way) for one, way in zip(ready, WAYS, strict=True)]

    def step(carry: tuple[Pair, Pair], away: Array) -> tuple[tuple[Pair, Pair], None]:
        passed, complete = carry  # the first pair's sums have come, the second's are to be sent
        arrived = sent(complete, passed)
        ours = rounded(totals(first, away, passed, complete))
        passed = sent(ours, arrived)
        return (passed, rounded(totals(second, away, arrived, ours))), None

    one, last = jnp.asarray(1), jnp.asarray(p)
    ours = rounded([term(i, one, ()) for i in first])
    passed: Pair = [shift(total, axes, way) for total, way in zip(ours, WAYS, strict=True)]
    complete = rounded([term(i, one, ours) for i in second])
    passed, complete = lax.scan(step, (passed, complete), counted(2, p), unroll=p <= UNROLLED)[0]
    arrived = sent(complete, passed)
    whole: list[Block] = []
    for pair, come in ((first, passed), (second, arrived)):
        for i, done in zip(pair, totals(pair, last, come, whole or complete), strict=True):
            done = done.astype(reducing.dtype)
            into = whole[0] if whole else unwritten(reducing.shape, done)
            whole = [lax.dynamic_update_slice_in_dim(into, done, starts[i], reducing.dimension)]
    return whole[0]
