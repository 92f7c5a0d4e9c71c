"""A scatter_min by indices and updates over one axis leaves infinity where nothing is written."""
# seen on JAX 0.10.2

import sys

import jax
import numpy as np
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
x = np.zeros((7, 8, 4), np.float32)
i, u = np.ones((2, 2), np.int32), np.ones((2, 7, 3), np.float32)
f = lambda x, i, u: lax.scatter_min(x, i, u, lax.ScatterDimensionNumbers((1, 2), (1,), (1, 2)), mode="clip")
right = np.asarray(jax.jit(f)(x, i, u))
x = jax.device_put(x, jax.NamedSharding(mesh, P(None, None, "a")))
i = jax.device_put(i, jax.NamedSharding(mesh, P("a", "b")))
u = jax.device_put(u, jax.NamedSharding(mesh, P("b")))
y = jax.jit(f, out_shardings=jax.NamedSharding(mesh, P(None, "b", "a")))(x, i, u)
parts = [(np.ravel(shard.data), np.ravel(right[shard.index])) for shard in y.addressable_shards]
wrong = [f"{got[:9]}, expected {expected[:9]}" for got, expected in parts if (got != expected).any()]
sys.exit(f"defect: zeros: {wrong[0]}" if wrong else 0)
