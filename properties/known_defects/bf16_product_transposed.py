"""XLA:CPU adds up a bfloat16 product in bfloat16 where its transpose is taken, and not in float32."""
# seen on JAX 0.12.0.1

import sys

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
x, y = jnp.ones((2, 1000), jnp.bfloat16), jnp.ones((1000, 4), jnp.bfloat16)
result = np.asarray(jax.jit(lambda x, y: (x @ y).T)(x, y))
if (result != 1000).any():  # a sum of ones in bfloat16 ends at 256
    sys.exit(f"defect: {result[0, 0]}, expected 1000")
