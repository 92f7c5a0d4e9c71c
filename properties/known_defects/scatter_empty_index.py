"""XLA:CPU: scatter_add with empty index vectors writes to the wrong elements."""

import sys

import jax
import jax.numpy as jnp
from jax import lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
numbers = lax.ScatterDimensionNumbers(update_window_dims=(), inserted_window_dims=(0,), scatter_dims_to_operand_dims=())
indices = jnp.zeros((2, 0), jnp.int32)
got = lax.scatter_add(jnp.array([2.0, 1.0]), indices, jnp.array([2.0, -2.0]), numbers).tolist()
sys.exit(f"defect: {got} where [2.0, 1.0] is right" if got != [2.0, 1.0] else 0)
