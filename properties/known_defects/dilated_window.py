"""A reduce_window over a replicated, dilated operand is wrong, or fails, where its result is to be sharded."""

import sys

import jax
import numpy as np
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 3)
mesh = jax.make_mesh((3,), ("a",), axis_types=(jax.sharding.AxisType.Auto,) * 1)
x = np.array([1, 2, 3])
f = lambda x: lax.reduce_window(x, 0, lax.add, (2,), (1,), [(0, 0)], (2,), (2,))
right = np.asarray(jax.jit(f)(x))
x = jax.device_put(x, jax.NamedSharding(mesh, P()))
y = jax.jit(f, out_shardings=jax.NamedSharding(mesh, P("a")))(x)
for shard in y.addressable_shards:
    got, expected = np.ravel(shard.data), np.ravel(right[shard.index])
    if (got != expected).any():
        sys.exit(f"defect: sums of two neighbours: {got[:9]}, expected {expected[:9]}")
