"""Right forms of the losses of a router: other orders of the same sums."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl.collectives import all_gather_invariant, cast_varying
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.right.catalogue import right
from shardproof.properties.mutants.router_losses import Balance, z_of
from shardproof.properties.mutants.router_losses_of_shards import alone


@right("load_balancing_loss")
def balance_of_means(logits: Array, axis_name: AxisName, *, top_k: int) -> Array:
    """Takes means of shares and of probabilities over participants: all have as many tokens."""

    def mean(x: Array, axis_name: AxisName) -> Array:
        return lax.pmean(cast_varying(x, names(axis_name)), axis_name) * lax.axis_size(axis_name)

    return Balance(summed=mean)(logits, axis_name, top_k=top_k)


@right("load_balancing_loss")
def balance_of_a_stable_sort(logits: Array, axis_name: AxisName, *, top_k: int) -> Array:
    """Chooses by the ranks of a stable sort of the negatives."""

    def ranked(x: Array, k: int) -> Array:
        x = lax.stop_gradient(x)
        first = jnp.argsort(-jnp.where(x == 0, 0, x), axis=1, stable=True)
        return jnp.sum(jnp.argsort(first, axis=1) < k, axis=0)

    return Balance(counts=ranked)(logits, axis_name, top_k=top_k)


@right("router_z_loss")
def z_of_gathered_logarithms(logits: Array, axis_name: AxisName) -> Array:
    """Gathers the logarithms of all tokens, and takes their mean square."""
    wide = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    own = cast_varying(jax.nn.logsumexp(wide, axis=1), names(axis_name))
    return jnp.mean(all_gather_invariant(own, axis_name, tiled=True) ** 2).astype(logits.dtype)


@right("router_z_loss")
def z_of_log_probabilities(logits: Array, axis_name: AxisName) -> Array:
    """Takes the logarithm of the sum as a logit less its log-probability, of the last expert."""
    return z_of(logits, axis_name, log_sum=lambda x: (x - jax.nn.log_softmax(x, axis=1))[:, -1])


@right("shard_load_balancing_loss")
def shard_balance_token_by_token(logits: Array, *, top_k: int) -> Array:
    """Gives every token the shares of its shard, and takes the mean of what they weigh."""
    wide = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    chosen = lax.top_k(lax.stop_gradient(jnp.where(wide == 0, 0, wide)), top_k)[1]
    shares = jnp.mean(jax.nn.one_hot(chosen, wide.shape[1], dtype=wide.dtype), axis=(0, 1))
    of_token = jax.vmap(lambda x: wide.shape[1] * jax.nn.softmax(x) @ shares)(wide)
    return jnp.mean(of_token).astype(logits.dtype)


@right("shard_router_z_loss")
def shard_z_of_a_loop(logits: Array) -> Array:
    """Adds up squares token by token, in a loop."""
    wide = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))

    def added(total: Array, x: Array) -> tuple[Array, None]:
        return total + jax.nn.logsumexp(x) ** 2, None

    total, _ = lax.scan(added, jnp.sum(wide[0]) * 0, wide)
    return (total / len(logits)).astype(logits.dtype)


@right("shard_router_z_loss")
def shard_z_of_a_shard_of_one(logits: Array) -> Array:
    """Takes it for that of all participants of no axis."""
    return z_of(logits, (), summed=alone)
