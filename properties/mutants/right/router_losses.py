"""Right forms of the losses of a router: other orders of the same sums."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl.collectives import cast_varying
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
def z_of_log_probabilities(logits: Array, axis_name: AxisName) -> Array:
    """Takes the logarithm of the sum as a logit less its log-probability, of the last expert."""
    return z_of(logits, axis_name, log_sum=lambda x: (x - jax.nn.log_softmax(x, axis=1))[:, -1])


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
