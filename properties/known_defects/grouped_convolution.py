"""A grouped convolution takes wrong groups, or corrupts memory, where an axis shards the features of its operand."""

import sys

import jax
import numpy as np
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Auto,) * 1)
x, w = np.arange(4.0, dtype=np.float32).reshape(1, 4, 1), np.arange(8.0, dtype=np.float32).reshape(4, 2, 1)
f = lambda x, w: lax.conv_general_dilated(x, w, (1,), "VALID", feature_group_count=2)
right = np.asarray(jax.jit(f)(x, w))
x = jax.device_put(x, jax.NamedSharding(mesh, P(None, "a")))
w = jax.device_put(w, jax.NamedSharding(mesh, P()))
y = jax.jit(f)(x, w)
for shard in y.addressable_shards:
    got, expected = np.ravel(shard.data), np.ravel(right[shard.index])
    if (got != expected).any():
        sys.exit(f"defect: two groups of two kernels each: {got}, expected {expected}")
