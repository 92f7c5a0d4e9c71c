"""Planted bugs of moe_layer that route wrongly or drop the wrong pairs, most of them a right layer with one change.

In that layer everything is gathered: all participants know all pairs of a token and its choice, and count who comes
before whom; the experts of each look at all tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl.collectives import all_gather, axis_index, reduce_scatter
from shardproof.impl.moe import all_gather_moe
from shardproof.properties.mutants.axes import AxisName, names, typed, widened
from shardproof.properties.mutants.catalogue import mutant


@dataclass(frozen=True)
class Pairs:
    """All pairs of a token and its choice, of all participants `[N]`, token by token.

    Arguments:
        token: the number of the token.
        choice: which of its choices it is.
        expert: the number of the expert.
        gate: what it counts; it is not differentiated.
        sender: the participant that has the token.
        receiver: the participant that has the expert.
        held: the experts of each participant.
        tokens: the tokens of each participant.
    """

    token: Array
    choice: Array
    expert: Array
    gate: Array
    sender: Array
    receiver: Array
    held: int
    tokens: int


Keys = Sequence[Array]
"""The order of the smallest first key, then of the second."""


def order(pairs: Pairs, policy: str) -> Keys:
    """Who comes first."""
    return {
        "probability": (-pairs.gate, pairs.token),
        "position": (pairs.token, pairs.choice),
        "choice": (pairs.choice, pairs.token),
        "sender": (pairs.sender, pairs.expert, pairs.token),
    }[policy]


def places(queue: Array, keys: Keys) -> Array:
    """How many of the same queue are before each."""
    before = jnp.zeros((queue.size, queue.size), bool)
    for key in reversed(keys):
        before = (key[None] < key[:, None]) | ((key[None] == key[:, None]) & before)
    return jnp.sum(before & (queue[:, None] == queue[None]), axis=1)


def keep(pairs: Pairs, capacity: int | None, policy: str) -> Array:
    """Who is kept, `[N]`."""
    if capacity is None:
        return jnp.full_like(pairs.token, True, dtype=bool)
    queue = pairs.receiver if policy == "sender" else pairs.expert
    room = capacity * pairs.held if policy == "sender" else capacity
    return places(queue, order(pairs, policy)) < room


def known(logits: Array) -> Array:
    """Logits as they count: what is NaN is lower than any number."""
    return jnp.where(jnp.isnan(logits), -1e30, logits)


def choose(logits: Array, top_k: int) -> Array:
    """The experts of the highest logits, ties to the lowest expert."""
    return lax.top_k(lax.stop_gradient(logits), top_k)[1]


def weigh(logits: Array, chosen: Array) -> Array:
    """The softmax over the chosen logits."""
    return jax.nn.softmax(jnp.take_along_axis(logits, chosen, axis=1), axis=1)


def count(gates: Array, kept: Array) -> Array:
    """The weight of each choice, `[T, k]`: 0 if it is dropped."""
    return jnp.where(kept, gates, 0)


def numbers(index: Array, held: int, participants: int) -> Array:
    """The numbers of a participant's own experts."""
    return index * held + jnp.arange(held)


@dataclass(frozen=True)
class Layer:
    """A right layer; a bug is one that has another of its parts."""

    choose: Callable[[Array, int], Array] = choose
    weigh: Callable[[Array, Array], Array] = weigh
    keep: Callable[[Pairs, int | None, str], Array] = keep
    count: Callable[[Array, Array], Array] = count
    numbers: Callable[[Array, int, int], Array] = numbers

    def __call__(
        self,
        tokens: Array,
        router_weights: Array,
        expert_weights: Array,
        axis_name: AxisName,
        *,
        top_k: int,
        capacity: int | None,
        policy: str,
    ) -> Array:
        """`tokens [T_Y, D]`, `router [D, E]`, `experts [E_Y, D, F]` to `[T_Y, F]`."""
        axes, dtype, held = names(axis_name), tokens.dtype, expert_weights.shape[0]
        tokens, router, weights = typed(axis_name, *map(widened, (tokens, router_weights, expert_weights)))
        logits = known(tokens @ router)
        chosen = self.choose(logits, top_k)
        gates = self.weigh(logits, chosen)
        everyone, all_gates = (all_gather(x, axes, tiled=True) for x in (chosen, gates))
        kept = self.keep(pairs_of(everyone, all_gates, held, len(tokens)), capacity, policy).reshape(everyone.shape)
        weighed = self.count(all_gates, kept)
        own = self.numbers(axis_index(axes), held, lax.axis_size(axes))
        shares = jnp.sum(jnp.where(everyone[..., None] == own, weighed[..., None], 0), axis=1)  # [p T, e]
        outputs = jnp.einsum("nd,edf->nef", all_gather(tokens, axes, tiled=True), weights)
        total = jnp.einsum("ne,nef->nf", shares, outputs)
        return reduce_scatter(total, axes, tiled=True).astype(dtype)


def pairs_of(chosen: Array, gates: Array, held: int, tokens: int) -> Pairs:
    """All pairs, given what the tokens of all participants choose: `[p T, k]`."""
    expert, number = chosen.ravel(), jnp.arange(chosen.size)
    top_k = chosen.shape[1]
    return Pairs(
        token=number // top_k,
        choice=number % top_k,
        expert=expert,
        gate=lax.stop_gradient(gates).ravel(),
        sender=number // top_k // max(tokens, 1),
        receiver=expert // held,
        held=held,
        tokens=tokens,
    )


def instead_of(part: str, **about: Any) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """Enters the layer that has a function for one of its parts, under the name and the sentence of that function."""

    def enter(replaced: Callable[..., Array]) -> Callable[..., Array]:
        def layer(*operands: Any, **options: Any) -> Array:
            return Layer(**{part: replaced})(*operands, **options)

        layer.__name__, layer.__doc__ = replaced.__name__, replaced.__doc__
        return mutant("moe_layer", **about)(layer)

    return enter


@instead_of("weigh", smallest=(1,))
def moe_of_all_logits(logits: Array, chosen: Array) -> Array:
    """Gates are the softmax over all logits, not over the chosen ones."""
    return jnp.take_along_axis(jax.nn.softmax(logits, axis=1), chosen, axis=1)


@instead_of("choose", smallest=(1,))
def moe_of_highest_expert(logits: Array, top_k: int) -> Array:
    """Of equal logits the highest expert's is chosen first."""
    return logits.shape[1] - 1 - choose(logits[:, ::-1], top_k)


@instead_of("choose", smallest=(1,), claims=("nan_logits",))
def moe_of_highest_nan(logits: Array, top_k: int) -> Array:
    """A logit that is NaN is higher than all numbers, as a sort has it."""
    return choose(jnp.where(logits == -1e30, jnp.inf, logits), top_k)


@instead_of("numbers", smallest=(2,))
def moe_of_strided_experts(index: Array, held: int, participants: int) -> Array:
    """Participant i has the experts i, i + p, i + 2 p and so on, instead of those one after the other."""
    return index + participants * jnp.arange(held)


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


@mutant("moe_layer", smallest=(1,), claims=("nan_tokens",))
def moe_of_gates_of_zero(*operands: Any, **options: Any) -> Array:
    """A dropped choice is weighed by zero, instead of being left out: of a token that is NaN it is NaN."""
    return Layer()(*operands, **options)


@mutant("moe_layer", law="gradient", smallest=(1,))
def moe_with_a_gradient_of_what_is_dropped(*operands: Any, **options: Any) -> Array:
    """Gradients flow as if nothing was dropped."""
    value, whole = Layer()(*operands, **options), Layer()(*operands, **{**options, "capacity": None})
    return whole + lax.stop_gradient(value - whole)


@mutant("moe_layer", law="error", smallest=(1,), claims=("explained_errors",))
def moe_of_fewer_choices(*operands: Any, top_k: int, **options: Any) -> Array:
    """Chooses all experts if `top_k` is more, and one if it is 0."""
    return all_gather_moe(*operands, top_k=max(1, min(top_k, operands[1].shape[1])), **options)
