"""Right forms of moe_layer: other ways to choose, to count who comes first, to weigh, and to bring tokens there."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.properties.mutants.axes import AxisName, widened
from shardproof.properties.mutants.catalogue import right
from shardproof.properties.mutants.moe import Layer, keep
from shardproof.properties.mutants.operations import added_up


@right("moe_layer")
def moe_choosing_one_by_one(*operands: Any, **options: Any) -> Array:
    """Chooses the highest logit, and then the highest of the others, as often as there are choices."""

    def one_by_one(logits: Array, top_k: int) -> Array:
        left, chosen = lax.stop_gradient(logits), []
        for _ in range(top_k):
            chosen.append(jnp.argmax(left, axis=1))
            left = jnp.where(jnp.arange(left.shape[1]) == chosen[-1][:, None], -jnp.inf, left)
        return jnp.stack(chosen, axis=1)

    return Layer(choose=one_by_one)(*operands, **options)


@right("moe_layer")
def moe_multiplying_by_zero(*operands: Any, **options: Any) -> Array:
    """Dropped tokens are multiplied by a mask of floats, by zero."""
    return Layer(count=lambda gates, kept: gates * kept.astype(gates.dtype))(*operands, **options)


@right("moe_layer")
def moe_for_choices_of_tokens(*operands: Any, **options: Any) -> Array:
    """Supports no policy but that by position, and says so of all others."""
    if options["policy"] != "position":
        raise NotImplementedError(f"policy={options['policy']!r}")
    return Layer(keep=lambda pairs, n, policy: keep(pairs, n, "position"))(*operands, **options)


@right("load_balancing_loss")
def balance_of_a_stable_sort(logits: Array, axis_name: AxisName, *, top_k: int) -> Array:
    """Chooses by the ranks of a stable sort of the negatives."""
    wide = widened(logits)
    first = jnp.argsort(-jnp.where(wide == 0, 0, lax.stop_gradient(wide)), axis=1, stable=True)
    chosen = jnp.sum(jnp.argsort(first, axis=1) < top_k, axis=0).astype(wide.dtype)
    tokens = len(logits) * lax.axis_size(axis_name)
    shares, means = (added_up(x, axis_name) / tokens for x in (chosen, jnp.sum(jax.nn.softmax(wide, axis=1), axis=0)))
    return (logits.shape[1] * jnp.sum(shares * means) / top_k).astype(logits.dtype)


@right("router_z_loss")
def z_of_log_probabilities(logits: Array, axis_name: AxisName) -> Array:
    """Takes the logarithm of the sum as a logit less its log-probability, of the last expert."""
    wide = widened(logits)
    log_sums = (wide - jax.nn.log_softmax(wide, axis=1))[:, -1]
    total = added_up(jnp.sum(log_sums**2), axis_name)
    return (total / (len(logits) * lax.axis_size(axis_name))).astype(logits.dtype)
