"""XLA:CPU counts bits of a negative int4 as if it had eight, and some of what is left is cut off."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
found = [int(n) for n in np.asarray(jax.jit(lax.population_count)(jnp.array([-1, -8, 7], jnp.int4)))]
right = [4, 1, 3]  # 4, as an int4, is 4
sys.exit(f"defect: {found}, expected {right}" if found != right else 0)
