"""Planted bugs of expert_choice_layer: experts choose other tokens, or weigh them otherwise."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from shardproof.properties.mutants.axes import AxisName
from shardproof.properties.mutants.catalogue import mutant
from shardproof.properties.mutants.moe import Layer, Pairs, count_renormalised, places


def chosen(
    tokens: Array, router_weights: Array, expert_weights: Array, axis_name: AxisName, *, capacity: int, **parts: Any
) -> Array:
    """A right layer in which experts choose; a bug is one that has another of its `parts`."""

    def every(logits: Array, top_k: int) -> Array:
        return jnp.broadcast_to(jnp.arange(top_k), logits.shape)

    right = {"choose": every, "weigh": lambda logits, chosen: jax.nn.softmax(logits, axis=1), **parts}
    options: dict[str, Any] = {"top_k": router_weights.shape[1], "capacity": capacity, "policy": "probability"}
    return Layer(**right)(tokens, router_weights, expert_weights, axis_name, **options)


def best(pairs: Pairs, capacity: int, queue: Array, key: Array) -> Array:
    """The first of each queue, by a key."""
    return places(queue, [key, pairs.token]) < capacity


@mutant("expert_choice_layer", smallest=(1,))
def expert_choice_renormalised(*operands: Any, **options: Any) -> Array:
    """Probabilities of a token are made to add up to one over the experts that chose it."""
    return chosen(*operands, count=count_renormalised, **options)


@mutant("expert_choice_layer", smallest=(2,))
def expert_choice_of_each_sender(*operands: Any, **options: Any) -> Array:
    """Experts choose N tokens of each participant, and not of all."""

    def of_senders(pairs: Pairs, capacity: int, policy: str) -> Array:
        queue = pairs.sender * (jnp.max(pairs.expert) + 1) + pairs.expert
        return best(pairs, capacity, queue, -pairs.gate)

    return chosen(*operands, keep=of_senders, **options)
