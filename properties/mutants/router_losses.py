"""Planted bugs of load_balancing_loss and router_z_loss."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl.collectives import cast_varying
from shardproof.properties.mutants.axes import AxisName, names, typed, widened
from shardproof.properties.mutants.catalogue import mutant


def added_up(x: Array, axis_name: AxisName) -> Array:
    """The sum over all participants."""
    return lax.psum(cast_varying(x, names(axis_name)), axis_name)


@mutant("load_balancing_loss", smallest=(2,))
def balance_of_each_participant(logits: Array, axis_name: AxisName, *, top_k: int) -> Array:
    """Takes the mean of the losses of each participant's own tokens."""
    wide = widened(logits)
    chosen = jax.nn.one_hot(lax.top_k(lax.stop_gradient(wide), top_k)[1], logits.shape[1], dtype=wide.dtype)
    own = jnp.sum(jnp.sum(chosen, axis=(0, 1)) * jnp.sum(jax.nn.softmax(wide, axis=1), axis=0))
    scale = logits.shape[1] / (len(logits) ** 2 * top_k * lax.axis_size(axis_name))
    return (added_up(own, axis_name) * scale).astype(logits.dtype)


@mutant("router_z_loss", smallest=(1,))
def z_below_one_maximum(logits: Array, axis_name: AxisName) -> Array:
    """Subtracts the largest logit of all tokens of a participant before powers are taken."""
    (wide,) = typed(axis_name, widened(logits))
    most = lax.stop_gradient(jnp.max(wide))
    own = jnp.mean(jnp.square(jnp.log(jnp.sum(jnp.exp(wide - most), axis=1)) + most))
    return lax.pmean(own, axis_name).astype(logits.dtype)
