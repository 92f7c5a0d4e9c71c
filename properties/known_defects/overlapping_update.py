"""XLA:CPU: `x.at[1:].set(x[:-1])[None]`, or add, under jit reads of x what it has written already."""

import sys

import jax
import jax.numpy as jnp

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
held = jax.jit(lambda x: x.at[1:].set(x[:-1])[None])(jnp.array([[1], [2], [3], [4]])).ravel().tolist()
wrong = held == [1, 1, 1, 1]
print(f"defect: rows [1, 2, 3, 4] are {held} once the first three are written to the last three" if wrong else "fixed")
sys.exit(wrong if wrong or held == [1, 1, 2, 3] else 2)
