"""Dispatch by all-to-alls with a buffer of fixed size for every pair of a sender and an expert."""

from shardproof.impl.collectives import Block
from shardproof.impl.moe.dispatch.slots import filled, slots, taken, through_experts
from shardproof.impl.moe.plan import Plan, moe_layer


def dispatched(plan: Plan) -> Block:
    """`tokens [T_Y, D]`, `router [D, E]`, `experts [E_Y, D, F]` to `[T_Y, F]`, typed varying: two all-to-alls.

    A participant sends E C rows, C the most that it can have for one expert: what it has no pair for is padding.

    Arguments and result are those of `dense_moe`.

    Raises:
        ValueError: as `dense_moe`.
    """
    at = slots(plan)
    buffers = filled(plan.tokens, at, plan.count * plan.most_sent)
    return plan.combined(taken(through_experts(plan, buffers), at))


all_to_all_moe = moe_layer("all_to_all_moe")(dispatched)
