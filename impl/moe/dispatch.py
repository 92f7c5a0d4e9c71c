"""Dispatches: by buffers of a fixed size, by gathering tokens or experts, and by ragged all-to-alls.

A buffer has C rows for each expert, one of which, its slot, each pair has that is kept.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from shardproof.impl.arguments import Axes, check_axes, check_count, check_kind, check_shape
from shardproof.impl.collectives import Block, all_gather, all_to_all, axis_index, reduce_scatter
from shardproof.impl.indices import quotient, remainder
from shardproof.impl.moe.capacity import argsort, count_pairs, places
from shardproof.impl.moe.experts import Weights, in_buffers, in_turn, sorted_by_expert
from shardproof.impl.moe.plan import Plan, moe_layer, narrowly
from shardproof.impl.ragged import ragged_all_to_all
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


@moe_layer
def all_to_all_moe(plan: Plan) -> Block:
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


@moe_layer
def ring_moe(plan: Plan) -> Block:
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


@moe_layer
def all_gather_moe(plan: Plan) -> Block:
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


@moe_layer
def sorted_moe(plan: Plan) -> Block:
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


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Dispatcher:
    """The way of rows to other participants, and of as many rows back to where they were.

    A participant's rows for one receiver are adjacent, and no row goes to two. Between rows for different receivers
    there may be rows that go nowhere (holes). A receiver's buffer has no holes, and is ordered by sender. Lists are
    integers `[p]`, or their derivatives.
    """

    send_offsets: Any  # where the rows begin that this participant sends to each
    send_sizes: Any  # how many they are
    buffer_offsets: Any  # where they begin in the buffer of each receiver
    recv_offsets: Any  # where the rows begin in this participant's buffer that come from each
    recv_sizes: Any  # how many they are
    home_offsets: Any  # where they began on the participant that sent them
    axes: Axes = field(metadata={"static": True})  # the axis tuple of the participants

    @classmethod
    def of(cls, offsets: Int[Array, "p"], sizes: Int[Array, "p"], axes: Axes) -> "Dispatcher":
        """The dispatcher of `sizes` rows from `offsets` on, for each participant. Two all-to-alls of integers."""
        participants = lax.axis_size(check_axes("Dispatcher.of", axes, argument="axes"))
        for name, x in (("offsets", offsets), ("sizes", sizes)):
            check_kind("Dispatcher.of", name, x, jnp.integer, "integers")
            check_shape("Dispatcher.of", name, x, (participants,), "one for each participant")
        offsets, sizes = offsets.astype(jnp.int32), sizes.astype(jnp.int32)
        home, received = all_to_all(jnp.stack([offsets, sizes]), axes, split_axis=1, concat_axis=1, tiled=True)
        begin = (jnp.cumsum(received) - received).astype(jnp.int32)
        there = all_to_all(begin, axes, split_axis=0, concat_axis=0, tiled=True)
        return cls(offsets, sizes, there, begin, received, home, axes)

    def there(self, rows: Block, room: int) -> Block:
        """`[N, …]` to `[room, …]`: what all participants send to this one; zeros where nothing arrives."""
        check_count("Dispatcher.there", "room", room)
        return self._sent(rows, room, self.send_offsets, self.send_sizes, self.buffer_offsets, self.recv_sizes)

    def back(self, rows: Block, count: int) -> Block:
        """`[room, …]` to `[count, …]`: each row to where it was sent from; zeros where none was."""
        check_count("Dispatcher.back", "count", count)
        return self._sent(rows, count, self.recv_offsets, self.recv_sizes, self.home_offsets, self.send_sizes)

    def _sent(self, rows: Block, room: int, *lists: Any) -> Block:
        blank = jnp.zeros((room, *rows.shape[1:]), rows.dtype)
        # no row goes to two participants: the gradient of `disjoint` slices needs no more room
        return ragged_all_to_all(rows, blank, *lists, axis_name=self.axes, disjoint=True)

    def arrived(self, room: int) -> Bool[Array, "m"]:
        """The mask of rows of a buffer that are filled: the first ones."""
        return jnp.arange(room) < jnp.sum(self.recv_sizes)

    def returned(self, count: int) -> Bool[Array, "n"]:
        """The mask of a participant's own rows that come back: not those in the holes."""
        return _begun(self.send_offsets, count) > _begun(self.send_offsets + self.send_sizes, count)


def _begun(starts: Int[Array, "k"], rows: int) -> Int[Array, "n"]:
    """For each row, the number of `starts` at it or before it, without an array of rows by starts."""
    return jnp.cumsum(jnp.zeros(rows, jnp.int32).at[starts].add(1, mode="drop"))


@moe_layer
def ragged_moe(plan: Plan) -> Block:
    """`tokens [T_Y, D]`, `router [D, E]`, `experts [E_Y, D, F]` to `[T_Y, F]`, typed varying: ragged all-to-alls.

    Pairs are sorted by participant, those that are kept first, by expert. XLA:CPU does not have the collective.

    Arguments, result and errors are those of `all_to_all_moe`; and NotImplementedError for a derivative under
    `jax.vmap`, as `ragged_all_to_all`.
    """
    p, pairs, room = plan.participants, plan.experts.size, plan.most_received
    destination = quotient(plan.experts, plan.held)
    # dropped pairs stay where they are, behind the others of their destination: holes in what is sent
    order = jnp.lexsort((plan.experts, ~plan.kept, destination))
    loads = count_pairs(destination, p)
    sent = count_pairs(jnp.where(plan.kept, plan.experts, plan.count), plan.count).reshape(p, plan.held)
    dispatcher = Dispatcher.of(jnp.cumsum(loads) - loads, jnp.sum(sent, axis=1), plan.axes)

    tokens = plan.tokens[plan.token[order]]
    rows = narrowly(lambda x, d: d.there(x, room), tokens, plan.sent, dispatcher, own_derivative=True)
    # of each sender's rows, those of the lowest expert come first: how many they are says whose each row is
    received = plan.exchanged(sent).ravel()
    own = jnp.where(dispatcher.arrived(room), remainder(_begun(jnp.cumsum(received), room), plan.held), -1)
    outputs = in_turn(rows, own[:, None], jnp.ones((room, 1), rows.dtype), plan.weights)
    home = jnp.where(dispatcher.returned(pairs)[:, None], dispatcher.back(outputs, pairs), 0)
    return plan.combined(home[argsort(order)])
