"""Planted bugs of moe_layer that route wrongly, and the right layer that planted bugs change in one thing.

In that layer everything is gathered: all participants know all pairs of a token and its choice, and count who comes
before whom; the experts of each look at all tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl.collectives import all_gather, axis_index, cast_varying, reduce_scatter, varying
from shardproof.properties.mutants.axes import AxisName, names
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


def serve(rows: Array, weights: Array) -> Array:
    """The results of every expert for all rows: `[N, e, F]`."""
    return jnp.einsum("nd,edf->nef", rows, weights)


@dataclass(frozen=True)
class Layer:
    """A right layer; a bug is one that has another of its parts."""

    choose: Callable[[Array, int], Array] = choose
    weigh: Callable[[Array, Array], Array] = weigh
    keep: Callable[[Pairs, int | None, str], Array] = keep
    count: Callable[[Array, Array], Array] = count
    numbers: Callable[[Array, int, int], Array] = numbers
    serve: Callable[[Array, Array], Array] = serve

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
        tokens, router, weights = typed(axis_name, tokens, router_weights, expert_weights)
        logits = known(tokens @ router)
        chosen = self.choose(logits, top_k)
        gates = self.weigh(logits, chosen)
        everyone, all_gates = (all_gather(x, axes, tiled=True) for x in (chosen, gates))
        kept = self.keep(pairs_of(everyone, all_gates, held, len(tokens)), capacity, policy).reshape(everyone.shape)
        weighed = self.count(all_gates, kept)
        own = self.numbers(axis_index(axes), held, lax.axis_size(axes))
        shares = jnp.sum(jnp.where(everyone[..., None] == own, weighed[..., None], 0), axis=1)  # [p T, e]
        total = jnp.einsum("ne,nef->nf", shares, self.serve(all_gather(tokens, axes, tiled=True), weights))
        return reduce_scatter(total, axes, tiled=True).astype(dtype)


def typed(axis_name: AxisName, *arrays: Array) -> Any:
    """The arrays in float32, or wider, and varying along all axes along which one of them is."""
    wide = [x.astype(jnp.promote_types(x.dtype, jnp.float32)) for x in arrays]
    return cast_varying(wide, {*names(axis_name)}.union(*map(varying, arrays)))


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
