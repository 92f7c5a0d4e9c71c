"""Planted bugs of load_balancing_loss and router_z_loss."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl.collectives import cast_varying, varying
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.catalogue import mutant


def choices(logits: Array, top_k: int) -> Array:
    """How many choices each expert has."""
    chosen = lax.top_k(lax.stop_gradient(logits), top_k)[1]
    return jnp.sum(jax.nn.one_hot(chosen, logits.shape[1]), axis=(0, 1))


def probabilities(logits: Array, top_k: int) -> Array:
    """The sum of the probabilities of each expert."""
    return jnp.sum(jax.nn.softmax(logits, axis=1), axis=0)


def added_up(x: Array, axis_name: AxisName) -> Array:
    """The sum over all participants."""
    return lax.psum(cast_varying(x, names(axis_name)), axis_name)


@dataclass(frozen=True)
class Balance:
    """A right loss that balances experts; a bug is one that has another of its parts."""

    counts: Callable[[Array, int], Array] = choices

    def __call__(self, logits: Array, axis_name: AxisName, *, top_k: int) -> Array:
        """`logits [T_Y, E]` to a scalar."""
        wide = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
        tokens, experts = len(logits) * lax.axis_size(axis_name), logits.shape[1]
        shares = added_up(self.counts(wide, top_k).astype(wide.dtype), axis_name) / (tokens * top_k)
        means = added_up(probabilities(wide, top_k), axis_name) / tokens
        return (experts * jnp.sum(shares * means)).astype(logits.dtype)


@mutant("load_balancing_loss", smallest=(2,))
def balance_of_each_participant(logits: Array, axis_name: AxisName, *, top_k: int) -> Array:
    """Takes the mean of the losses of each participant's own tokens."""
    wide = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    own = jnp.sum(choices(wide, top_k).astype(wide.dtype) * probabilities(wide, top_k))
    scale = logits.shape[1] / (len(logits) ** 2 * top_k * lax.axis_size(axis_name))
    return (added_up(own, axis_name) * scale).astype(logits.dtype)


@mutant("router_z_loss", smallest=(1,))
def z_below_one_maximum(logits: Array, axis_name: AxisName) -> Array:
    """Subtracts the largest logit of all tokens of a participant before powers are taken."""
    wide = cast_varying(
        logits.astype(jnp.promote_types(logits.dtype, jnp.float32)), {*names(axis_name), *varying(logits)}
    )
    most = lax.stop_gradient(jnp.max(wide))
    own = jnp.mean(jnp.square(jnp.log(jnp.sum(jnp.exp(wide - most), axis=1)) + most))
    return lax.pmean(own, axis_name).astype(logits.dtype)
