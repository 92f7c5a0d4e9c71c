"""Dispatch that sends no token: all experts' weights are gathered, and every participant computes on its own tokens.

On one participant this is the layer by itself.
"""

import jax.numpy as jnp

from shardproof.impl.arguments import AxisName
from shardproof.impl.collectives import Block, all_gather
from shardproof.impl.moe.experts import Weights, in_turn, sorted_by_expert
from shardproof.impl.moe.plan import ExpertWeights, Plan, planned
from shardproof.impl.moe.travel import narrowly


def sorted_moe(
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
    """`tokens [T_Y, D]`, `router [D, E]`, `experts [E_Y, D, F]` to `[T_Y, F]`, typed varying: sorts by expert.

    Pairs are sorted by their expert, and each group is multiplied by its own matrix by `jax.lax.ragged_dot`. Never has
    an array of tokens by features by features.

    Arguments and result are those of `dense_moe`.

    Raises:
        ValueError: as `dense_moe`.
        NotImplementedError: under `jax.vmap`.
    """
    plan = planned(
        "sorted_moe", tokens, router_weights, expert_weights, axis_name,
        top_k=top_k, capacity=capacity, policy=policy, over=over, capacity_per_sender=capacity_per_sender,
    )  # fmt: skip
    if plan.empty:
        return plan.zeros()
    experts = jnp.where(plan.kept, plan.experts, -1)
    return plan.combined(sorted_by_expert(plan.tokens[plan.token], experts, _all_weights(plan)))


def scanned_moe(
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
    """`tokens [T_Y, D]`, `router [D, E]`, `experts [E_Y, D, F]` to `[T_Y, F]`, typed varying: one expert after another.

    Every expert looks at all tokens of the participant, and takes those that are its own: E T products.

    Arguments and result are those of `dense_moe`.

    Raises:
        ValueError: as `dense_moe`.
    """
    plan = planned(
        "scanned_moe", tokens, router_weights, expert_weights, axis_name,
        top_k=top_k, capacity=capacity, policy=policy, over=over, capacity_per_sender=capacity_per_sender,
    )  # fmt: skip
    if plan.empty:
        return plan.zeros()
    gates = plan.gates.reshape(-1, plan.top_k)
    return in_turn(plan.tokens, plan.choices, gates, _all_weights(plan)).astype(plan.dtype)


def _all_weights(plan: Plan) -> Weights:
    """The weights of all participants' experts, one after the other."""
    return [narrowly(lambda x: all_gather(x, plan.axes, tiled=True), w, plan.weighed) for w in plan.weights]
