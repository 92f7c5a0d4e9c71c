"""Dispatches that gather: all tokens, at every participant's experts; or all experts' weights, and no token travels."""

from functools import partial

import jax.numpy as jnp

from shardproof.impl.collectives import Block, all_gather, reduce_scatter
from shardproof.impl.moe.experts import in_turn, sorted_by_expert
from shardproof.impl.moe.plan import Plan, moe_layer, narrowly


def dispatch_by_all_gather(plan: Plan) -> Block:
    """`tokens [T_Y, D]`, `router [D, E]`, `experts [E_Y, D, F]` to `[T_Y, F]`, typed varying: gathers tokens.

    The tokens of all participants are gathered with their choices, each participant's experts take what is theirs in
    turn, and the sums of what they make are reduced and scattered. Costs nothing for skewed routing, as bytes do not
    depend on it, and has all tokens at once.

    Arguments, result and errors are those of `all_to_all_moe`.
    """
    gathered = partial(all_gather, axis_name=plan.axes, tiled=True)
    rows = narrowly(gathered, plan.tokens, plan.sent)
    experts = gathered(plan.choices)
    gates = gathered(plan.gates).reshape(experts.shape)
    total = in_turn(rows, plan.own(experts), gates, plan.weights)
    return reduce_scatter(total, plan.axes, tiled=True).astype(plan.dtype)


def dispatch_sorted(plan: Plan) -> Block:
    """`tokens [T_Y, D]`, `router [D, E]`, `experts [E_Y, D, F]` to `[T_Y, F]`, typed varying: sorts by expert.

    Pairs are sorted by their expert, and each group is multiplied by its own matrix by `jax.lax.ragged_dot`. As traced,
    it never has an array of pairs by features by features; compiled for CPU it has one of experts by pairs by features,
    `[E, T k, D]`, into which XLA expands `ragged_dot`.

    Arguments, result and errors are those of `all_to_all_moe`; and NotImplementedError under `jax.vmap`.
    """
    experts = jnp.where(plan.kept, plan.experts, -1)
    gather = partial(all_gather, axis_name=plan.axes, tiled=True)
    weights = [narrowly(gather, w, plan.weighed) for w in plan.weights]  # of all participants' experts
    return plan.combined(sorted_by_expert(plan.tokens[plan.token], experts, weights))


all_gather_moe = moe_layer("all_gather_moe", dispatch_by_all_gather)
sorted_moe = moe_layer("sorted_moe", dispatch_sorted)
