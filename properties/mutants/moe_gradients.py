"""Planted bugs of moe_layer whose results are right, and whose derivatives are not; and such as refuse too little."""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl.moe.capacity import POLICIES
from shardproof.impl.moe.dispatch.all_gather import all_gather_moe
from shardproof.properties.mutants.catalogue import mutant
from shardproof.properties.mutants.moe import Layer, choose, count, weigh


def _with_gradient_of(value: Array, other: Array) -> Array:
    """The value, with the derivatives of another."""
    return other + lax.stop_gradient(value - other)


@mutant("moe_layer", law="gradient", smallest=(1,))
def moe_without_router_gradient(*operands: Any, **options: Any) -> Array:
    """Gates are constants, as the choices are: the router gets no gradient."""
    return Layer(weigh=lambda logits, chosen: lax.stop_gradient(weigh(logits, chosen)))(*operands, **options)


@mutant("moe_layer", law="gradient", smallest=(1,))
def moe_with_a_gradient_of_what_is_dropped(*operands: Any, **options: Any) -> Array:
    """Gradients flow as if nothing was dropped."""
    return _with_gradient_of(Layer()(*operands, **options), Layer()(*operands, **{**options, "capacity": None}))


@mutant("moe_layer", law="gradient", smallest=(1,))
def moe_with_gates_of_what_is_dropped(*operands: Any, **options: Any) -> Array:
    """The router learns from choices that are dropped."""

    def straight(gates: Array, kept: Array) -> Array:
        return count(gates, kept) + jnp.where(kept, 0, gates - lax.stop_gradient(gates))

    return Layer(count=straight)(*operands, **options)


@mutant("moe_layer", law="gradient", smallest=(1,))
def moe_with_idle_experts_learning(*operands: Any, **options: Any) -> Array:
    """An expert to which no token comes has a gradient."""
    tokens, router, weights, axis_name = operands
    right = Layer()(*operands, **options)
    busy = (
        jnp.zeros((router.shape[1],), bool).at[choose(tokens.astype(jnp.float32) @ router, options["top_k"])].set(True)
    )
    everyone = lax.pmax(busy.astype(jnp.int32), axis_name)
    held, index = weights.shape[0], lax.axis_index(axis_name)
    idle = 1 - lax.dynamic_slice_in_dim(everyone, index * held, held)
    some = jnp.sum(weights * idle[:, None, None].astype(weights.dtype))
    return right + (some - lax.stop_gradient(some))


@mutant("moe_layer", law="error", smallest=(1,), claims=("explained_errors",), form="user")
def moe_of_fewer_choices(*operands: Any, top_k: int, **options: Any) -> Array:
    """Chooses all experts where more are asked for, and one where none are."""
    return all_gather_moe(*operands, top_k=max(1, min(top_k, operands[1].shape[1])), **options)


@mutant("moe_layer", law="error", smallest=(1,), claims=("explained_errors",), form="user")
def moe_of_any_policy(*operands: Any, policy: str, **options: Any) -> Array:
    """Takes a policy that it does not know for that by position."""
    return all_gather_moe(*operands, policy=policy if policy in POLICIES else "position", **options)
