"""Dispatches by buffers of a fixed size: C rows for each expert, one of which, its slot, each pair has that is kept."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from shardproof.impl.collectives import Block, axis_index
from shardproof.impl.indices import quotient
from shardproof.impl.moe.capacity import places
from shardproof.impl.moe.experts import Weights, in_buffers
from shardproof.impl.moe.plan import Plan, moe_layer, narrowly
from shardproof.impl.rings import shift

Slots = Int[Array, "t k"]
"""The row of each choice of each token; a number that is no row for dropped ones, and for those in other buffers."""

Visitors = tuple[Block, Block, Block]
"""The tokens of a participant `[T, D]`, their slots at all experts `[T, k]`, and gates `[T, k]`."""


def slots(plan: Plan) -> Slots:
    """Rows of the buffers of all experts, `plan.most_sent` for each; -1 for dropped pairs."""
    queues = jnp.where(plan.kept, plan.experts, plan.count)
    place = places(queues, plan.count)
    return jnp.where(plan.kept, queues * plan.most_sent + place, -1).reshape(-1, plan.top_k)


def fill_buffers(tokens: Float[Array, "t d"], at: Slots, count: int) -> Float[Array, "n d"]:
    """Buffers of `count` rows in all, each a token; zeros in rows that no pair has."""
    rows = jnp.where((at >= 0) & (at < count), at, count).ravel()
    source = jnp.full(count, -1).at[rows].set(quotient(jnp.arange(at.size), at.shape[1]), mode="drop")
    return jnp.where(source[:, None] >= 0, tokens[jnp.maximum(source, 0)], 0)


def read_buffers(buffers: Float[Array, "n f"], at: Slots) -> Float[Array, "m f"]:
    """The row of each pair; zeros if it has none."""
    rows = at.ravel()
    held = (rows >= 0) & (rows < buffers.shape[0])
    return jnp.where(held[:, None], buffers[jnp.where(held, rows, 0)], 0)


def through_experts(plan: Plan, buffers: Float[Array, "n d"]) -> Float[Array, "n f"]:
    """`[E C, D]` to `[E C, F]`: to the participant of each expert, through it, and back. Two all-to-alls.

    Tokens travel in their own dtype, and outputs, which are terms of sums, in the accumulator's.
    """
    p, held, room = plan.participants, plan.held, plan.most_sent
    arrived = narrowly(plan.exchanged, buffers, plan.sent).reshape(p, held, room, -1)  # [sender, expert, slot, feature]
    by_expert = jnp.swapaxes(arrived, 0, 1).reshape(held, p * room, -1)
    outputs = in_buffers(by_expert, plan.weights).reshape(held, p, room, -1)
    return plan.exchanged(jnp.swapaxes(outputs, 0, 1).reshape(p * held * room, -1))


def dispatch_by_all_to_all(plan: Plan) -> Block:
    """`tokens [T_Y, D]`, `router [D, E]`, `experts [E_Y, D, F]` to `[T_Y, F]`, typed varying: two all-to-alls.

    A token goes to the experts of its `top_k` highest logits, ties to the lowest expert. Its result is the sum of the
    outputs of those that keep it, each by its gate; nothing is renormalised after drops. A dropped choice adds zero,
    and has no gradient. A participant sends E C rows, C the most that it can have for one expert: rows without a pair
    are padding (GShard, Lepikhin et al., 2020, section 3.2).

    Arguments:
        tokens: floating-point blocks; those of participant 0 are the first, in logical order.
        router_weights: floating-point, the same on all participants.
        expert_weights: floating-point blocks of experts, one array, or a sequence of the three of gated MLPs: gate
            `[E_Y, D, H]`, up `[E_Y, D, H]`, down `[E_Y, H, F]`.
        top_k: how many experts a token chooses.
        capacity: the most pairs of a token and its choice that an expert keeps, of all (see `capacity_of`); None: all.
        policy: who is kept: `"probability"`, `"position"`, `"choice"` or `"sender"` (see `impl/moe/capacity.py`).
        over: gates are the softmax over the `"chosen"` logits, or over `"all"`.
        capacity_per_sender: the most pairs that a participant sends to one expert; None: all.

    Returns:
        Blocks in the dtype that all operands promote to, computed in float32 or wider, and rounded once.
    """
    at = slots(plan)
    buffers = fill_buffers(plan.tokens, at, plan.count * plan.most_sent)
    return plan.combined(read_buffers(through_experts(plan, buffers), at))


def dispatch_round_a_ring(plan: Plan) -> Block:
    """`tokens [T_Y, D]`, `router [D, E]`, `experts [E_Y, D, F]` to `[T_Y, F]`, typed varying: p - 1 steps round a ring.

    Tokens go on to the next participant while experts compute on them, and the sums of outputs follow one step behind:
    no transfer waits for a product of the same step. A participant's own tokens are computed while those of the first
    neighbour are on their way.

    Arguments, result and errors are those of `all_to_all_moe`.
    """
    p, held, room = plan.participants, plan.held, plan.most_sent

    def following(x: Block) -> Block:
        return shift(x, plan.axes, 1)

    def onward(visitors: Visitors) -> Visitors:
        rows, at, gates = visitors
        return narrowly(following, rows, plan.sent), following(at), following(gates)

    @jax.checkpoint  # what is held for a derivative are visitors, and no products
    def served(visitors: Visitors, weights: Weights) -> Block:
        rows, at, gates = visitors
        at = at - first
        buffers = fill_buffers(rows, at, held * room).reshape(held, room, -1)
        outputs = read_buffers(in_buffers(buffers, weights).reshape(held * room, plan.features), at)
        return jnp.sum((outputs * gates.ravel()[:, None]).reshape(*at.shape, plan.features), axis=1)

    def step(state: tuple[Visitors, Block], _: None) -> tuple[tuple[Visitors, Block], None]:
        visitors, total = state
        return (onward(visitors), following(total) + served(visitors, plan.weights)), None

    first = axis_index(plan.axes) * (held * room)  # of the rows of all experts, those of its own
    own = (plan.tokens, slots(plan), plan.gates.reshape(-1, plan.top_k))
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


all_to_all_moe = moe_layer("all_to_all_moe", dispatch_by_all_to_all)
ring_moe = moe_layer("ring_moe", dispatch_round_a_ring)
