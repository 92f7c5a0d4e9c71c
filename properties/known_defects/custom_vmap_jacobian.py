"""jacfwd of a custom_vmap calls its rule with an operand that is not batched, which most rules cannot take."""
# fails with: ValueError: scan got no values to scan over

import jax
import jax.numpy as jnp

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
double = jax.custom_batching.sequential_vmap(lambda x: 2 * x)
assert (jax.jacfwd(double)(jnp.ones(3)) == 2 * jnp.eye(3)).all()
