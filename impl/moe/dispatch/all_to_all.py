"""Dispatch by all-to-alls with a buffer of fixed size for every pair of a sender and an expert."""

from shardproof.impl.arguments import AxisName
from shardproof.impl.collectives import Block
from shardproof.impl.moe.dispatch.exchange import through_experts
from shardproof.impl.moe.dispatch.slots import filled, slots, taken
from shardproof.impl.moe.plan import ExpertWeights, Plan, planned


def all_to_all_moe(
    tokens: Block,
    router_weights: Block,
    expert_weights: ExpertWeights,
    axis_name: AxisName,
    *,
    top_k: int,
    capacity: int | None = None,
    policy: str = "probability",
    over: str = "chosen",
    capacity_per_sender: int | None = None,
) -> Block:
    """`tokens [T_Y, D]`, `router [D, E]`, `experts [E_Y, D, F]` to `[T_Y, F]`, typed varying: two all-to-alls.

    A participant sends E C rows, C the most that it can have for one expert: what it has no pair for is padding.

    Arguments and result are those of `dense_moe`.

    Raises:
        ValueError: as `dense_moe`.
    """
    plan = planned(
        "all_to_all_moe", tokens, router_weights, expert_weights, axis_name,
        top_k=top_k, capacity=capacity, policy=policy, over=over, capacity_per_sender=capacity_per_sender,
    )  # fmt: skip
    return dispatched(plan)


def dispatched(plan: Plan) -> Block:
    """The result of a plan: `[T, F]`."""
    if plan.empty:
        return plan.zeros()
    at = slots(plan)
    buffers = filled(plan.tokens, at, plan.count * plan.most_sent)
    return plan.combined(taken(through_experts(plan, buffers), at))
