"""A scatter_add whose indices one axis of two shards unevenly also adds to the element at 0, for what pads them."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
i = np.array([0, 1, 2])
f = lambda i: jnp.zeros(3).at[lax.with_sharding_constraint(i, jax.NamedSharding(mesh, P("a")))].add(1)
got = np.asarray(jax.jit(f)(i))
print(f"defect: {got}, expected {np.ones(3)}" if (got != 1).any() else "fixed")
sys.exit(bool((got != 1).any()))
