"""Dispatch that gathers all tokens: every participant's experts look at all of them, and what they make is summed."""

from shardproof.impl.collectives import Block, all_gather, reduce_scatter
from shardproof.impl.moe.experts import in_turn
from shardproof.impl.moe.plan import Plan, moe_layer
from shardproof.impl.moe.travel import narrowly


def dispatched(plan: Plan) -> Block:
    """`tokens [T_Y, D]`, `router [D, E]`, `experts [E_Y, D, F]` to `[T_Y, F]`, typed varying: gathers tokens.

    The tokens of all participants are gathered with their choices, each participant's experts take what is theirs in
    turn, and the sums of what they make are reduced and scattered. Costs nothing for skewed routing, as bytes do not
    depend on it, and has all tokens at once.

    Arguments and result are those of `dense_moe`.

    Raises:
        ValueError: as `dense_moe`.
    """

    def gathered(x: Block) -> Block:
        return all_gather(x, plan.axes, tiled=True)

    rows = narrowly(gathered, plan.tokens, plan.sent)
    experts = gathered(plan.choices)
    gates = gathered(plan.gates).reshape(experts.shape)
    total = in_turn(rows, plan.own(experts), gates, plan.weights)
    return reduce_scatter(total, plan.axes, tiled=True).astype(plan.dtype)


all_gather_moe = moe_layer("all_gather_moe")(dispatched)
