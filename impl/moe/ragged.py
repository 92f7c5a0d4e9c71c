"""Dispatch by ragged all-to-alls: just the pairs that are kept travel, and nothing else."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from shardproof.impl.arguments import Axes, check_axes, check_count, check_kind, check_shape
from shardproof.impl.collectives import Block, all_to_all
from shardproof.impl.indices import quotient, remainder
from shardproof.impl.moe.capacity import argsort, count_pairs
from shardproof.impl.moe.experts import in_turn
from shardproof.impl.moe.plan import Plan, moe_layer, narrowly
from shardproof.impl.ragged import ragged_all_to_all


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


def dispatch_raggedly(plan: Plan) -> Block:
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


ragged_moe = moe_layer("ragged_moe", dispatch_raggedly)
