"""Planted bugs of moe_layer that drop the wrong pairs of a token and its choice."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl.collectives import all_gather, axis_index
from shardproof.impl.moe import Room, all_gather_moe, kept
from shardproof.impl.moe.gathered import dispatch_by_all_gather
from shardproof.impl.moe.plan import Plan
from shardproof.properties.mutants.axes import in_mesh_order
from shardproof.properties.mutants.catalogue import mutant
from shardproof.properties.mutants.moe import (
    Keys,
    Layer,
    Pairs,
    instead_of,
    keep,
    order,
    places,
)
from shardproof.properties.mutants.moe_travel import plan_for


def _kept(pairs: Pairs, capacity: int | None, policy: str, keys: Keys, queue: Array | None = None) -> Array:
    """Who is kept in another order, or in other queues."""
    if capacity is None:
        return keep(pairs, capacity, policy)
    usual, room = (pairs.receiver, capacity * pairs.held) if policy == "sender" else (pairs.expert, capacity)
    return places(usual if queue is None else queue, keys) < room


@instead_of("keep", smallest=(2,))
def moe_with_room_for_each_sender(pairs: Pairs, capacity: int | None, policy: str) -> Array:
    """Every participant counts its own tokens alone, so that an expert gets the capacity from each."""
    senders = jnp.max(pairs.sender) + 1
    return _kept(pairs, capacity, policy, order(pairs, policy), pairs.expert * senders + pairs.sender)


@instead_of("keep", smallest=(1,))
def moe_of_last_ties(pairs: Pairs, capacity: int | None, policy: str) -> Array:
    """Of equal gates the last token's is kept."""
    keys = (-pairs.gate, -pairs.token) if policy == "probability" else order(pairs, policy)
    return _kept(pairs, capacity, policy, keys)


@instead_of("keep", smallest=(1,))
def moe_by_position_in_all_policies(pairs: Pairs, capacity: int | None, policy: str) -> Array:
    """By choice second choices of earlier tokens come before first ones of later ones."""
    return keep(pairs, capacity, "position" if policy == "choice" else policy)


@instead_of("keep", smallest=(1,))
def moe_without_room_for_none(pairs: Pairs, capacity: int | None, policy: str) -> Array:
    """Takes a capacity of zero for none, and drops nothing."""
    return keep(pairs, capacity or None, policy)


@instead_of("keep", smallest=(1,))
def moe_with_one_place_more(pairs: Pairs, capacity: int | None, policy: str) -> Array:
    """A capacity is the last place that is kept, and counts from zero."""
    return keep(pairs, None if capacity is None else capacity + 1, policy)


@mutant("moe_layer", smallest=(2, 2))
def moe_numbering_in_mesh_order(*operands: Any, **options: Any) -> Array:
    """Takes the tokens of a tuple's participants for those in mesh order when it counts who comes first."""
    axes = operands[3]

    def in_order(pairs: Pairs, capacity: int | None, policy: str) -> Array:
        numbers = all_gather(axis_index(in_mesh_order(axes)), axes)
        sender = numbers[pairs.sender]
        token = sender * pairs.tokens + pairs.token % pairs.tokens
        return keep(replace(pairs, sender=sender, token=token), capacity, policy)

    return Layer(keep=in_order)(*operands, **options)


@instead_of("keep", smallest=(2,), claims=("first_senders",))
def moe_of_last_senders(pairs: Pairs, capacity: int | None, policy: str) -> Array:
    """The last participant fills a buffer first."""
    keys = order(pairs, policy)
    return _kept(pairs, capacity, policy, (-keys[0], *keys[1:]) if policy == "sender" else keys)


@instead_of("keep", smallest=(2,))
def moe_short_for_one_pair(pairs: Pairs, capacity: int | None, policy: str) -> Array:
    """The last participant has room for a pair less than it may need, for one expert: it shows where all is needed."""
    kept, last = keep(pairs, capacity, policy), jnp.max(pairs.sender)
    between = kept & (pairs.sender == last) & (pairs.expert == 0) & (last > 0)
    most = pairs.tokens if capacity is None else min(pairs.tokens, capacity)
    behind = kept.size - 1 - jnp.argmax(between[::-1])
    full = jnp.sum(between) == most
    return kept & ~(full & between & (jnp.arange(kept.size) == behind))


@instead_of("keep", smallest=(1,))
def moe_of_narrow_counts(pairs: Pairs, capacity: int | None, policy: str) -> Array:
    """Counts the tokens before one in 8 bits, so that an expert takes too many of very many."""
    if capacity is None or policy == "sender":
        return keep(pairs, capacity, policy)
    return places(pairs.expert, order(pairs, policy)).astype(jnp.int8) < capacity


@mutant("moe_layer", law="gradient", smallest=(1,), claims=("gates_of_all",))
def moe_of_a_constant_sum(*operands: Any, over: str, **options: Any) -> Array:
    """The gradient of gates of all logits forgets those that are not chosen."""

    def weigh(logits: Array, chosen: Array) -> Array:
        best = jnp.take_along_axis(logits, chosen, axis=1)
        most = jax.lax.stop_gradient(jnp.max(logits, axis=1, keepdims=True))
        of_all, own = (jnp.sum(jnp.exp(x - most), axis=1, keepdims=True) for x in (logits, best))
        others = jax.lax.stop_gradient(of_all - own) if over == "all" else 0
        return jnp.exp(best - most) / (own + others)

    return Layer(weigh=weigh)(*operands, **options)


def _sent_by(plan: Plan, keeps: Array, options: Any) -> Array:
    """The layer in which senders send just the pairs that they keep, and capacities drop of these."""
    queues = jnp.where(keeps, plan.experts, plan.count)
    room = Room(options["capacity"], options["policy"])
    others = kept(queues.reshape(-1, plan.top_k), plan.gates.reshape(-1, plan.top_k), plan.count, room, plan.axes)
    return dispatch_by_all_gather(replace(plan, kept=keeps & others.ravel()))


@mutant("moe_layer", smallest=(1,), claims=("sender_capacity",))
def moe_of_first_come_senders(*operands: Any, capacity_per_sender: int | None, **options: Any) -> Array:
    """Senders drop by position, whatever the policy is."""

    def dispatch(plan: Plan) -> Array:
        experts, gates = (x.reshape(-1, plan.top_k) for x in (plan.experts, plan.gates))
        keeps = kept(experts, gates, plan.count, Room(None, "position", capacity_per_sender), plan.axes)
        return _sent_by(plan, keeps.ravel(), options)

    return plan_for(operands, options).result(dispatch)


@mutant("moe_layer", smallest=(1,), claims=("nan_tokens",))
def moe_of_gates_of_zero(*operands: Any, **options: Any) -> Array:
    """A dropped choice is weighed by zero, instead of being left out: of a token that is NaN it is NaN."""
    return Layer()(*operands, **options)


def _with_gradient_of(value: Array, other: Array) -> Array:
    """The value, with the derivatives of another."""
    return other + lax.stop_gradient(value - other)


@mutant("moe_layer", law="gradient", smallest=(1,))
def moe_with_a_gradient_of_what_is_dropped(*operands: Any, **options: Any) -> Array:
    """Gradients flow as if nothing was dropped."""
    return _with_gradient_of(Layer()(*operands, **options), Layer()(*operands, **{**options, "capacity": None}))


@mutant("moe_layer", law="error", smallest=(1,), claims=("explained_errors",))
def moe_of_fewer_choices(*operands: Any, top_k: int, **options: Any) -> Array:
    """Chooses all experts if `top_k` is more, and one if it is 0."""
    return all_gather_moe(*operands, top_k=max(1, min(top_k, operands[1].shape[1])), **options)
