"""Planted bugs of moe_layer in what is optional: gates of all logits, what senders drop themselves, NaN in tokens."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from shardproof.impl.moe.capacity import Room, kept
from shardproof.impl.moe.dispatch.chunked import dispatched
from shardproof.impl.moe.dispatch.dense import dense_moe
from shardproof.impl.moe.plan import Plan
from shardproof.properties.mutants.catalogue import mutant
from shardproof.properties.mutants.moe import Layer, Pairs, keep
from shardproof.properties.mutants.moe_travel import plan_for


@mutant("moe_layer", smallest=(1,), form="user")
def moe_ranking_in_bfloat16(*operands: Any, **options: Any) -> Array:
    """Who comes first is decided by gates that are rounded to bfloat16."""

    def rounded(pairs: Pairs, capacity: int | None, policy: str) -> Array:
        gate = pairs.gate.astype(jnp.bfloat16).astype(pairs.gate.dtype)
        return keep(replace(pairs, gate=gate), capacity, policy)

    return Layer(keep=rounded)(*operands, **options)


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
    return dispatched(replace(plan, kept=keeps & others.ravel()))


@mutant("moe_layer", smallest=(1,), claims=("sender_capacity",))
def moe_of_first_come_senders(*operands: Any, capacity_per_sender: int | None, **options: Any) -> Array:
    """Senders drop by position, whatever the policy is."""
    plan = plan_for(operands, options)
    if plan.empty or not plan.experts.size:
        return plan.zeros()
    experts, gates = (x.reshape(-1, plan.top_k) for x in (plan.experts, plan.gates))
    keeps = kept(experts, gates, plan.count, Room(None, "position", capacity_per_sender), plan.axes)
    return _sent_by(plan, keeps.ravel(), options)


@mutant("moe_layer", smallest=(1,), claims=("nan_tokens",))
def moe_of_one_hot_products(*operands: Any, **options: Any) -> Array:
    """Buffers are products of tokens and masks, where zero times NaN is NaN: one token spoils others."""
    return dense_moe(*operands, **options)


@mutant("moe_layer", smallest=(1,), claims=("nan_tokens",))
def moe_of_gates_of_zero(*operands: Any, **options: Any) -> Array:
    """A dropped choice is weighed by zero, instead of being left out: of a token that is NaN it is NaN."""
    return Layer()(*operands, **options)
