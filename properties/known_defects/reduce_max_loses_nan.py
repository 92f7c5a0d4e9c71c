"""XLA:CPU: the maximum or minimum of an array of 4,096 elements or more ignores NaN."""

import sys

import jax
import jax.numpy as jnp

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)

few, many = (jnp.ones((4, n)).at[0].set(jnp.nan) for n in (1000, 1024))
assert jnp.isnan(few.max(axis=0)).all()
problem = "" if jnp.isnan(many.max(axis=0)).all() else f"max of NaN and ones is {many.max(axis=0)[0]}"
sys.exit(f"defect: {problem}" if problem else 0)
