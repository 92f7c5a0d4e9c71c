"""XLA drops an update of a sharded dimension that starts behind its end, in place of clamping the start."""

import sys

import jax
import numpy as np
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Auto,) * 1)
x = np.array([1, 2, 3, 4])
update = np.array([9])
f = lambda x, update: lax.dynamic_update_slice(x, update, (5,))
right = np.asarray(jax.jit(f)(x, update))
x = jax.device_put(x, jax.NamedSharding(mesh, P("a")))
update = jax.device_put(update, jax.NamedSharding(mesh, P()))
y = jax.jit(f)(x, update)
for shard in y.addressable_shards:
    got, expected = np.ravel(shard.data), np.ravel(right[shard.index])
    if (got != expected).any():
        sys.exit(f"defect: an update by 9 at 5 of 4 elements: {got[:9]}, expected {expected[:9]}")
