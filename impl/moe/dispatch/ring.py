"""Dispatch round a ring: tokens travel from participant to participant, and each serves those that its experts keep."""

import jax
from jax import lax

from shardproof.impl.collective_matmul.rings import shift
from shardproof.impl.collectives import Block, axis_index
from shardproof.impl.moe.dispatch.slots import slots, through_slots
from shardproof.impl.moe.experts import Weights
from shardproof.impl.moe.layer import moe_layer
from shardproof.impl.moe.plan import Plan
from shardproof.impl.moe.travel import narrowly

Visitors = tuple[Block, Block, Block]
"""The tokens of a participant `[T, D]`, their slots at all experts `[T, k]`, and gates `[T, k]`."""


@moe_layer("ring_moe")
def ring_moe(plan: Plan) -> Block:
    """`tokens [T_Y, D]`, `router [D, E]`, `experts [E_Y, D, F]` to `[T_Y, F]`, typed varying: p - 1 steps round a ring.

    Tokens go on to the next participant while they are served, and the sums of what experts made of them follow one
    step behind: no transfer waits for a product of the same step. A participant serves its own tokens while those of
    the first neighbour are on their way.

    Arguments and result are those of `dense_moe`.

    Raises:
        ValueError: as `dense_moe`.
    """
    return dispatched(plan)


def dispatched(plan: Plan) -> Block:
    """The result of a plan: `[T, F]`."""

    def onward(visitors: Visitors) -> Visitors:
        rows, at, gates = visitors
        return narrowly(following, rows, plan.sent), following(at), following(gates)

    def following(x: Block) -> Block:
        return shift(x, plan.axes, 1)

    @jax.checkpoint  # what is held for a derivative are visitors, and no products
    def served(visitors: Visitors, weights: Weights) -> Block:
        rows, at, gates = visitors
        return through_slots(rows, at - first, gates, weights, plan.most_sent)

    def step(state: tuple[Visitors, Block], _: None) -> tuple[tuple[Visitors, Block], None]:
        visitors, total = state
        return (onward(visitors), following(total) + served(visitors, plan.weights)), None

    first = axis_index(plan.axes) * (plan.held * plan.most_sent)  # of the rows of all experts, those of its own
    p, own = plan.participants, (plan.tokens, slots(plan), plan.gates.reshape(-1, plan.top_k))
    home = served(own, plan.weights)
    if p > 1:
        visitors = onward(own)
        if p == 2:
            total = served(visitors, plan.weights)
        else:
            state = onward(visitors), served(visitors, plan.weights)
            (visitors, total), _ = lax.scan(step, state, length=p - 3)
            total = following(total) + served(visitors, plan.weights)
        home = following(total) + home
    return home.astype(plan.dtype)
