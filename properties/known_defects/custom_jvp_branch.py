"""The gradient of a vmap of a cond raises if a branch's custom_jvp has a mapped tangent, but no mapped result."""
# fails with: TypeError: broadcast_in_dim broadcast_dimensions must have length

import jax
import jax.numpy as jnp
from jax import lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
zero = jax.custom_jvp(lambda x: jnp.zeros(()))
zero.defjvp(lambda primals, tangents: (zero(*primals), 2 * tangents[0]))


def _chosen(x: jax.Array) -> jax.Array:
    return lax.cond(lax.optimization_barrier(True), zero, jnp.sin, x)


found = jax.grad(lambda x: jax.vmap(_chosen)(x).sum())(jnp.ones(3))
assert (found == 2).all()
