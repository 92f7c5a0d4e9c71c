"""Slots: a row of a buffer for every pair that an expert keeps, C rows for each expert, one behind the other."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from shardproof.impl.collectives import Block, all_to_all
from shardproof.impl.indices import quotient
from shardproof.impl.moe.experts import Weights, in_buffers
from shardproof.impl.moe.plan import Plan
from shardproof.impl.moe.ranks import places
from shardproof.impl.moe.travel import narrowly

Slots = Int[Array, "t k"]
"""Of each choice of each token, its row; of dropped ones, and of other buffers', a number that is none."""


def slots(plan: Plan) -> Slots:
    """Rows of the buffers of all experts, `plan.most_sent` for each; -1 for dropped pairs."""
    queues = jnp.where(plan.kept, plan.experts, plan.count)
    place = places(queues, plan.count)
    return jnp.where(plan.kept, queues * plan.most_sent + place, -1).reshape(-1, plan.top_k)


def filled(tokens: Float[Array, "t d"], at: Slots, count: int) -> Float[Array, "n d"]:
    """Buffers of `count` rows in all, each the token that has it; zeros where none has."""
    rows = jnp.where((at >= 0) & (at < count), at, count).ravel()
    source = jnp.full(count, -1).at[rows].set(quotient(jnp.arange(at.size), at.shape[1]), mode="drop")
    return jnp.where(source[:, None] >= 0, tokens[jnp.maximum(source, 0)], 0)


def taken(buffers: Float[Array, "n f"], at: Slots) -> Float[Array, "m f"]:
    """Of each pair, the row that it has; zeros where it has none."""
    rows = at.ravel()
    held = (rows >= 0) & (rows < buffers.shape[0])
    return jnp.where(held[:, None], buffers[jnp.where(held, rows, 0)], 0)


def through_slots(
    tokens: Float[Array, "t d"], at: Slots, gates: Float[Array, "t k"], weights: Weights, room: int
) -> Float[Array, "t f"]:
    """`[T, D]` to `[T, F]`: of each token, the sum of gate times output over the experts in `weights` that keep it.

    Arguments:
        tokens: of anyone.
        at: rows of buffers of `room` rows for each expert in `weights`.
        gates: what each choice counts.
        weights: of e experts.
        room: C.
    """
    held, features = weights[0].shape[0], weights[-1].shape[2]
    buffers = filled(tokens, at, held * room).reshape(held, room, -1)
    outputs = taken(in_buffers(buffers, weights).reshape(held * room, features), at)
    return jnp.sum((outputs * gates.ravel()[:, None]).reshape(*at.shape, features), axis=1)


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
