"""XLA reads a dynamic_slice of a sharded dimension that starts behind its end from the wrong place."""
# seen on JAX 0.10.2

import sys

import jax
import numpy as np
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Auto,) * 1)
x = np.arange(8)
i = np.int32(9)
f = lambda x, i: lax.dynamic_slice(x, (i,), (4,))
right = np.asarray(jax.jit(f)(x, i))
x = jax.device_put(x, jax.NamedSharding(mesh, P("a")))
i = jax.device_put(i, jax.NamedSharding(mesh, P()))
y = jax.jit(f, out_shardings=jax.NamedSharding(mesh, P("a")))(x, i)
for shard in y.addressable_shards:
    got, expected = np.ravel(shard.data), np.ravel(right[shard.index])
    if (got != expected).any():
        sys.exit(f"defect: four elements at 9 of 8: {got[:9]}, expected {expected[:9]}")
