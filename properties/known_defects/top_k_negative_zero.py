"""XLA:CPU: top_k takes -0 for less than 0, and so not the first of equal elements, as JAX promises."""

import sys

import jax
import jax.numpy as jnp

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
indices = jax.lax.top_k(jnp.array([-0.0, -0.0, 0.0, -0.0]), 2)[1].tolist()
wrong = indices == [2, 0]
sys.exit(f"defect: the indices of the largest two of four zeros are {indices}" if wrong else 0)
