"""Dispatch that sends no token: all experts' weights are gathered, and every participant computes on its own tokens.

On one participant this is the layer by itself.
"""

import jax.numpy as jnp

from shardproof.impl.collectives import Block, all_gather
from shardproof.impl.moe.experts import Weights, in_turn, sorted_by_expert
from shardproof.impl.moe.plan import Plan, moe_layer
from shardproof.impl.moe.travel import narrowly


def dispatched(plan: Plan) -> Block:
    """`tokens [T_Y, D]`, `router [D, E]`, `experts [E_Y, D, F]` to `[T_Y, F]`, typed varying: sorts by expert.

    Pairs are sorted by their expert, and each group is multiplied by its own matrix by `jax.lax.ragged_dot`. As traced,
    it never has an array of pairs by features by features; compiled for CPU it has one of experts by pairs by features,
    `[E, T k, D]`, into which XLA expands `ragged_dot`.

    Arguments and result are those of `dense_moe`.

    Raises:
        ValueError: as `dense_moe`.
        NotImplementedError: under `jax.vmap`.
    """
    experts = jnp.where(plan.kept, plan.experts, -1)
    return plan.combined(sorted_by_expert(plan.tokens[plan.token], experts, _all_weights(plan)))


sorted_moe = moe_layer("sorted_moe")(dispatched)


@moe_layer("scanned_moe")
def scanned_moe(plan: Plan) -> Block:
    """`tokens [T_Y, D]`, `router [D, E]`, `experts [E_Y, D, F]` to `[T_Y, F]`, typed varying: one expert after another.

    Every expert looks at all tokens of the participant, and takes those that are its own: E T products.

    Arguments and result are those of `dense_moe`.

    Raises:
        ValueError: as `dense_moe`.
    """
    gates = plan.gates.reshape(-1, plan.top_k)
    return in_turn(plan.tokens, plan.choices, gates, _all_weights(plan)).astype(plan.dtype)


def _all_weights(plan: Plan) -> Weights:
    """The weights of all participants' experts, one after the other."""
    return [narrowly(lambda x: all_gather(x, plan.axes, tiled=True), w, plan.weighed) for w in plan.weights]
