"""The pairs of a token and its choice that an expert keeps when more come than it has room for.

Tokens are numbered over all participants, in logical order: those of participant 0 first. Room counts over all
participants, and so the lengths of their queues are sent, or all gates, where the highest win; no tokens.
"""

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int

from shardproof.impl.arguments import Axes, check_axes, check_count, is_integer, refuse
from shardproof.impl.collectives import Block, all_gather, axis_index, cast_varying, varying
from shardproof.impl.indices import quotient

POLICIES = ("probability", "position", "choice", "sender")
"""The pairs that an expert keeps: those of the highest gates, ties by token; the first tokens; all first choices
before second ones, each by token. By "sender" the experts of a participant share one buffer, of that much room for
each of them, which the first participant fills first, and of its pairs those of the lowest expert, each by token."""


def capacity_of(tokens: int, experts: int, top_k: int, factor: float | Fraction) -> int:
    """The room of an expert: its even share of all pairs, times a factor, rounded up; computed outside of tracing.

    The factor is the decimal that it is written as: 1.1 of 10 is 11, although the product of the floats is more. 1 is
    just enough if routing is even. `tokens` and `experts` are those of all participants.

    Raises:
        ValueError: unless numbers are integers, of which experts are positive, and everything is at least 0.
    """
    for name, value, least in (("tokens", tokens, 0), ("experts", experts, 1), ("top_k", top_k, 0)):
        if not is_integer(value) or value < least:
            raise ValueError(f"capacity_of: {name}={value!r}: expected an integer of at least {least}")
    real = isinstance(factor, numbers.Real | np.floating) and not isinstance(factor, bool)
    if not real or not 0 <= factor < math.inf:
        raise ValueError(f"capacity_of: factor={factor!r}: expected a finite number of at least 0")
    return math.ceil(Fraction(str(factor)) * int(tokens) * int(top_k) / int(experts))


@dataclass(frozen=True)
class Room:
    """The limits of what experts keep, static."""

    # the most pairs that an expert keeps, of all participants; by "sender" the experts of a participant share a buffer
    # of that many for each. None: all.
    capacity: int | None
    policy: str  # one of `POLICIES`
    # the most pairs that one participant sends to an expert, in the policy's order; it drops the others. None: all.
    capacity_per_sender: int | None = None

    def __post_init__(self) -> None:
        for name in ("capacity", "capacity_per_sender"):  # NumPy's integers are of few bits
            if is_integer(getattr(self, name)):
                object.__setattr__(self, name, int(getattr(self, name)))

    def check(self, function: str) -> None:
        """Raises ValueError for what is no static integer of at least 0, and for an unknown policy."""
        check_count(function, "capacity", self.capacity, optional=True)
        check_count(function, "capacity_per_sender", self.capacity_per_sender, optional=True)
        if self.policy not in POLICIES:
            refuse(function, "policy", self.policy, f"one of {', '.join(POLICIES)}")


Numbers = Int[Array, "n"]
"""A number for every pair."""


def argsort(numbers: Numbers) -> Numbers:
    """The order that sorts numbers, typed as they are: `jnp.argsort` types it as the same everywhere."""
    return cast_varying(jnp.argsort(numbers), varying(numbers))


def count_pairs(queues: Numbers, count: int) -> Int[Array, "q"]:
    """The number of pairs in each of `count` queues; other numbers are in none."""
    return jnp.sum(queues[:, None] == jnp.arange(count), axis=0, dtype=jnp.int32)


def places(queues: Numbers, count: int, first: Sequence[Block] = (), *, axes: Axes = ()) -> Numbers:
    """The place of every pair in its queue, from 0: by the keys in `first`, ties as the pairs stand.

    Sorts once, and never has an array of pairs by queues by features. Pairs of the queue `count` are in none, and
    have places of no meaning. With `axes`, in queues of all participants, the first one's pairs first: the lengths of
    queues are gathered, `[p, count]`, and no pairs.
    """
    if not queues.size:
        return queues
    *_, order = lax.sort((queues, *first, jnp.arange(queues.size)), num_keys=1 + len(first))
    sizes = count_pairs(queues, count + 1)
    ranked = jnp.arange(queues.size) - (jnp.cumsum(sizes) - sizes)[queues[order]]
    place = jnp.zeros_like(ranked).at[order].set(ranked).astype(jnp.int32)
    if not axes:
        return place
    lengths = all_gather(count_pairs(queues, count), axes)
    lower = jnp.arange(lengths.shape[0])[:, None] < axis_index(axes)
    before = jnp.sum(jnp.where(lower, lengths, 0), axis=0)
    return place + jnp.append(before, 0)[queues]


def kept(experts: Int[Array, "t k"], gates: Block, count: int, room: Room, axes: Axes) -> Bool[Array, "t k"]:
    """The mask of this participant's pairs that are kept, `[T, k]`.

    `experts [T, k]` are the numbers of the chosen ones, of all `count`, and pairs are ordered by `gates [T, k]` under
    "probability".
    """
    room.check("kept")
    axes = check_axes("kept", axes, argument="axes")
    sent = _sent(experts, gates, count, room)
    if room.capacity is None or not experts.size:
        return sent
    if not room.capacity:
        return jnp.zeros_like(sent)
    queues = jnp.where(sent, experts, count)  # what is not sent waits in no queue
    p = lax.axis_size(axes)
    capacity = min(room.capacity, p * experts.size)  # more is no other, and need not be an int32
    if room.policy == "probability":  # all gates are gathered, and sorted
        everyone, weights = (all_gather(x.ravel(), axes, tiled=True) for x in (queues, lax.stop_gradient(gates)))
        place = places(everyone, count, [-weights])
        place = lax.dynamic_slice(place, (axis_index(axes) * queues.size,), (queues.size,))
    elif room.policy == "choice":
        place = _by_choices(queues, count, axes)
    elif room.policy == "position":
        place = places(queues.ravel(), count, axes=axes)
    else:  # the experts of a participant are one queue, in which a sender's pairs stand by expert
        held = count // p
        place, capacity = places(quotient(queues.ravel(), held), p, [queues.ravel()], axes=axes), capacity * held
    return sent & (place.reshape(queues.shape) < capacity)


def _sent(experts: Block, gates: Block, count: int, room: Room) -> Bool[Array, "t k"]:
    """The mask of pairs that their own participant does not drop."""
    if room.capacity_per_sender is None:
        return jnp.full_like(experts, True, dtype=bool)
    if room.policy == "choice":
        place = places(experts.T.ravel(), count).reshape(experts.T.shape).T
    else:
        first = [-lax.stop_gradient(gates).ravel()] if room.policy == "probability" else []
        place = places(experts.ravel(), count, first).reshape(experts.shape)
    return place < min(room.capacity_per_sender, experts.size)


def _by_choices(queues: Block, count: int, axes: Axes) -> Block:
    """Places in queues of all participants, one behind the other for first, second, … choices."""
    top_k = queues.shape[1]
    each = jnp.where(queues < count, queues + count * jnp.arange(top_k), top_k * count)
    place = places(each.ravel(), top_k * count, axes=axes).reshape(queues.shape)
    lengths = lax.psum(count_pairs(each.ravel(), top_k * count), axes).reshape(top_k, count)
    before = jnp.cumsum(lengths, axis=0) - lengths
    return place + jnp.append(before.ravel(), 0)[each]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Counters:
    """Numbers of pairs of all participants, by expert, `[E]`, int32; typed invariant."""

    chosen: Int[Array, "e"]
    sent: Int[Array, "e"]  # not dropped by their own participant, even if the expert is its own
    dropped_by_sender: Int[Array, "e"]
    dropped_by_receiver: Int[Array, "e"]  # for which the expert has no room
    kept: Int[Array, "e"]


def count_drops(experts: Int[Array, "t k"], gates: Block, count: int, room: Room, axes: Axes) -> Counters:
    """The drop counters of what `kept` says, whose arguments they have: kept and dropped ones are all pairs."""
    room.check("count_drops")
    axes = check_axes("count_drops", axes, argument="axes")
    chosen = experts.ravel()
    keeps = kept(experts, gates, count, room, axes).ravel()
    sent = _sent(experts, gates, count, room).ravel()
    counts = (
        count_pairs(chosen, count),
        count_pairs(jnp.where(sent, chosen, count), count),
        count_pairs(jnp.where(sent, count, chosen), count),
        count_pairs(jnp.where(sent & ~keeps, chosen, count), count),
        count_pairs(jnp.where(keeps, chosen, count), count),
    )
    return Counters(*lax.psum(cast_varying(counts, axes), axes))
