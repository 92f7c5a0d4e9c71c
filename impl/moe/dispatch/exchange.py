"""Buffers of a fixed size for every pair of a sender and an expert, exchanged by all-to-alls."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from shardproof.impl.collectives import Block, all_to_all
from shardproof.impl.moe.experts import in_buffers
from shardproof.impl.moe.plan import Plan
from shardproof.impl.moe.travel import narrowly


def through_experts(plan: Plan, buffers: Float[Array, "n d"]) -> Float[Array, "n f"]:
    """`[E C, D]` to `[E C, F]`: to the participant of each expert, through it, and back. Two all-to-alls.

    Tokens travel in their own dtype, and what experts make of them as wide as it is computed: it is a term of a sum.
    """
    p, held, room = plan.participants, plan.held, plan.most_sent

    def there(rows: Block) -> Block:
        return all_to_all(rows, plan.axes, split_axis=0, concat_axis=0, tiled=True)

    arrived = narrowly(there, buffers, plan.sent).reshape(p, held, room, -1)  # [sender, expert, slot, feature]
    by_expert = jnp.swapaxes(arrived, 0, 1).reshape(held, p * room, -1)
    outputs = in_buffers(by_expert, plan.weights).reshape(held, p, room, -1)
    return there(jnp.swapaxes(outputs, 0, 1).reshape(p * held * room, -1))
