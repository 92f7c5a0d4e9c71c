"""A grouped convolution takes wrong groups where one axis shards the features, and two the kernels."""

import sys

import jax
import numpy as np
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
x = np.arange(16.0).reshape(1, 2, 8)
w = np.arange(8.0).reshape(4, 1, 2)
f = lambda x, w: lax.conv_general_dilated(x, w, (1,), "VALID", feature_group_count=2)
right = np.asarray(jax.jit(f)(x, w))
x = jax.device_put(x, jax.NamedSharding(mesh, P(None, "b")))
w = jax.device_put(w, jax.NamedSharding(mesh, P(("b", "a"))))
y = jax.jit(f)(x, w)
for shard in y.addressable_shards:
    got, expected = np.ravel(shard.data), np.ravel(right[shard.index])
    if (got != expected).any():
        sys.exit(f"defect: outputs of one group: {got[:9]}, expected {expected[:9]}")
