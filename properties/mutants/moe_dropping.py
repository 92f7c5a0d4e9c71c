"""Planted bugs of moe_layer that drop the wrong pairs of a token and its choice."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl.collectives import all_gather, axis_index
from shardproof.properties.mutants.axes import in_mesh_order
from shardproof.properties.mutants.catalogue import mutant
from shardproof.properties.mutants.moe import Keys, Layer, Pairs, keep, order, places


def _kept(pairs: Pairs, capacity: int | None, policy: str, keys: Keys, queue: Array | None = None) -> Array:
    """Who is kept in another order, or in other queues."""
    if capacity is None:
        return keep(pairs, capacity, policy)
    usual, room = (pairs.receiver, capacity * pairs.held) if policy == "sender" else (pairs.expert, capacity)
    return places(usual if queue is None else queue, keys) < room


@mutant("moe_layer", smallest=(2,))
def moe_with_room_for_each_sender(*operands: Any, **options: Any) -> Array:
    """Every participant counts its own tokens alone, so that an expert gets the capacity from each."""

    def each(pairs: Pairs, capacity: int | None, policy: str) -> Array:
        senders = jnp.max(pairs.sender) + 1
        return _kept(pairs, capacity, policy, order(pairs, policy), pairs.expert * senders + pairs.sender)

    return Layer(keep=each)(*operands, **options)


@mutant("moe_layer", smallest=(1,))
def moe_of_last_ties(*operands: Any, **options: Any) -> Array:
    """Of equal gates the last token's is kept."""

    def last(pairs: Pairs, capacity: int | None, policy: str) -> Array:
        keys = (-pairs.gate, -pairs.token) if policy == "probability" else order(pairs, policy)
        return _kept(pairs, capacity, policy, keys)

    return Layer(keep=last)(*operands, **options)


@mutant("moe_layer", smallest=(1,), form="user")
def moe_of_first_choices_of_ties(*operands: Any, **options: Any) -> Array:
    """Of equal gates those of first choices are kept, and only then those of the first tokens."""

    def first(pairs: Pairs, capacity: int | None, policy: str) -> Array:
        keys = (-pairs.gate, pairs.choice, pairs.token) if policy == "probability" else order(pairs, policy)
        return _kept(pairs, capacity, policy, keys)

    return Layer(keep=first)(*operands, **options)


@mutant("moe_layer", smallest=(1,))
def moe_by_position_in_all_policies(*operands: Any, **options: Any) -> Array:
    """By choice second choices of earlier tokens come before first ones of later ones."""

    def by_position(pairs: Pairs, capacity: int | None, policy: str) -> Array:
        return keep(pairs, capacity, "position" if policy == "choice" else policy)

    return Layer(keep=by_position)(*operands, **options)


@mutant("moe_layer", smallest=(1,))
def moe_without_room_for_none(*operands: Any, **options: Any) -> Array:
    """Takes a capacity of zero for none, and drops nothing."""
    return Layer(keep=lambda pairs, n, policy: keep(pairs, n or None, policy))(*operands, **options)


@mutant("moe_layer", smallest=(1,))
def moe_with_one_place_more(*operands: Any, **options: Any) -> Array:
    """A capacity is the last place that is kept, and counts from zero."""
    return Layer(keep=lambda pairs, n, policy: keep(pairs, None if n is None else n + 1, policy))(*operands, **options)


@mutant("moe_layer", smallest=(1,))
def moe_with_one_buffer_of_several(*operands: Any, **options: Any) -> Array:
    """The experts of a participant share the room of all, so that one may have that of others."""

    def shared(pairs: Pairs, capacity: int | None, policy: str) -> Array:
        if capacity is None or policy == "sender":
            return keep(pairs, capacity, policy)
        return places(pairs.receiver, order(pairs, policy)) < capacity * pairs.held

    return Layer(keep=shared)(*operands, **options)


@mutant("moe_layer", smallest=(2, 2), form="user")
def moe_numbering_in_mesh_order(*operands: Any, **options: Any) -> Array:
    """Takes the tokens of a tuple's participants for those in mesh order when it counts who comes first."""
    axes = operands[3]

    def in_order(pairs: Pairs, capacity: int | None, policy: str) -> Array:
        numbers = all_gather(axis_index(in_mesh_order(axes)), axes)
        sender = numbers[pairs.sender]
        token = sender * pairs.tokens + pairs.token % pairs.tokens
        return keep(replace(pairs, sender=sender, token=token), capacity, policy)

    return Layer(keep=in_order)(*operands, **options)


@mutant("moe_layer", smallest=(2,), claims=("first_senders",))
def moe_of_last_senders(*operands: Any, **options: Any) -> Array:
    """The last participant fills a buffer first."""

    def last(pairs: Pairs, capacity: int | None, policy: str) -> Array:
        keys = order(pairs, policy)
        return _kept(pairs, capacity, policy, (-keys[0], *keys[1:]) if policy == "sender" else keys)

    return Layer(keep=last)(*operands, **options)


@mutant("moe_layer", smallest=(2,))
def moe_short_for_one_pair(*operands: Any, **options: Any) -> Array:
    """The last participant has room for a pair less than it may need, for one expert: it shows where all is needed."""

    def short(pairs: Pairs, capacity: int | None, policy: str) -> Array:
        kept, last = keep(pairs, capacity, policy), jnp.max(pairs.sender)
        between = kept & (pairs.sender == last) & (pairs.expert == 0) & (last > 0)
        most = pairs.tokens if capacity is None else min(pairs.tokens, capacity)
        behind = kept.size - 1 - jnp.argmax(between[::-1])
        full = jnp.sum(between) == most
        return kept & ~(full & between & (jnp.arange(kept.size) == behind))

    return Layer(keep=short)(*operands, **options)


@mutant("moe_layer", smallest=(33,), law="scale", runs="large", form="user")
def moe_for_32_experts(*operands: Any, **options: Any) -> Array:
    """Keeps the numbers of experts in five bits."""
    return Layer(choose=lambda logits, top_k: lax.top_k(lax.stop_gradient(logits), top_k)[1] % 32)(*operands, **options)


def kept_by_narrow_counts(pairs: Pairs, capacity: int | None, policy: str) -> Array:
    """Counts who comes before in 8 bits, and so from the 128th on anew."""
    if capacity is None or policy == "sender":
        return keep(pairs, capacity, policy)
    return places(pairs.expert, order(pairs, policy)).astype(jnp.int8) < capacity


@mutant("moe_layer", smallest=(1,))
def moe_of_narrow_counts(*operands: Any, **options: Any) -> Array:
    """Counts the tokens before one in 8 bits, so that an expert takes too many of very many."""
    return Layer(keep=kept_by_narrow_counts)(*operands, **options)
