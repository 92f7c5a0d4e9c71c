"""A convolution whose operands are both sharded along what is added up is doubled over the other axis of a mesh."""

import sys

import jax
import numpy as np
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
x = np.arange(4.0).reshape(1, 1, 4)
w = np.ones((1, 1, 2))
f = lambda x, w: lax.conv_general_dilated(x, w, (1,), "VALID")
right = np.asarray(jax.jit(f)(x, w))
x = jax.device_put(x, jax.NamedSharding(mesh, P(None, None, "b")))
w = jax.device_put(w, jax.NamedSharding(mesh, P(None, None, "b")))
y = jax.jit(f)(x, w)
for shard in y.addressable_shards:
    got, expected = np.ravel(shard.data), np.ravel(right[shard.index])
    if (got != expected).any():
        sys.exit(f"defect: a sum of neighbours: {got[:9]}, expected {expected[:9]}")
