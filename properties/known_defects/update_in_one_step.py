"""An update by a loop of one step changes an element of each shard, where only the result is to be sharded."""
# seen on JAX 0.10.2

import sys

import jax
import numpy as np
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Auto,) * 1)
x = np.arange(4)
f = lambda x: lax.fori_loop(0, 1, lambda i, x: x.at[i].set(9), x)
right = np.asarray(jax.jit(f)(x))
x = jax.device_put(x, jax.NamedSharding(mesh, P()))
got = np.asarray(jax.jit(f, out_shardings=jax.NamedSharding(mesh, P("a")))(x))
print(f"defect: {got}, expected {right}" if (got != right).any() else "fixed")
sys.exit(bool((got != right).any()))
