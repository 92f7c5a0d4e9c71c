"""Dispatch by products with one-hot arrays, as GShard has it (Lepikhin et al., 2020, algorithm 1 and section 3.2)."""

import jax
import jax.numpy as jnp
from jax import lax

from shardproof.impl.collectives import Block
from shardproof.impl.moe.dispatch.slots import slots, through_experts
from shardproof.impl.moe.plan import Plan, moe_layer


@moe_layer("dense_moe")
def dense_moe(plan: Plan) -> Block:
    """`tokens [T_Y, D]`, `router [D, E]`, `experts [E_Y, D, F]` to `[T_Y, F]`, typed varying: one-hot products.

    A token goes to the experts of its `top_k` highest logits, ties to the lowest expert, and gets the sum of what those
    that keep it make of it, each by its gate; nothing is renormalised after drops. A dropped choice adds zero, and has
    no gradient. Has an array `[T, k, E C]`, and zeros of it multiply every token: tokens must be finite.

    Arguments:
        tokens: floating-point blocks; those of participant 0 are the first, in logical order.
        router_weights: floating-point, the same on all participants.
        expert_weights: floating-point blocks of experts, one array, or a sequence of the three of gated MLPs: gate
            `[E_Y, D, H]`, up `[E_Y, D, H]`, down `[E_Y, H, F]`.
        axis_name: the axis or axis tuple over which tokens and experts are sharded.
        top_k: how many experts a token chooses.
        capacity: the most pairs of a token and its choice that an expert keeps, of all participants; None: all. See
            `capacity_of`.
        policy: who is kept: `"probability"`, `"position"`, `"choice"` or `"sender"` (see `impl/moe/capacity.py`).
        over: gates are the softmax over the `"chosen"` logits, or over `"all"`.
        capacity_per_sender: the most pairs that a participant sends to one expert; None: all.

    Returns:
        Blocks in the dtype that all operands promote to, computed in float32 or wider, and rounded once.

    Raises:
        ValueError: for an unknown axis; operands that are not floating, or of another rank or shape; experts that are
            no multiple of the participants; a `top_k`, `capacity`, `policy` or `over` that is none.
    """
    pairs = jax.nn.one_hot(slots(plan), plan.count * plan.most_sent, dtype=plan.tokens.dtype)  # [T, k, E C]
    tokens = jnp.sum(pairs, axis=1)  # [T, E C]: no row holds two pairs, and a dropped one is in none
    buffers = lax.dot_general(tokens, plan.tokens, (((0,), (0,)), ((), ())), precision=lax.Precision.HIGHEST)
    outputs = jnp.matmul(pairs, through_experts(plan, buffers), precision=lax.Precision.HIGHEST)
    return plan.combined(outputs.reshape(-1, plan.features))
