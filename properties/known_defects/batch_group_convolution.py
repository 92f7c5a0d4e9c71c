"""A convolution of batch groups whose features an axis shards is added up over the other axis of a mesh as well."""

import sys

import jax
import numpy as np
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
x = w = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
f = lambda x, w: lax.conv_general_dilated(x, w, (1,), "VALID", batch_group_count=2)
right = np.asarray(jax.jit(f)(x, w))
x = jax.device_put(x, jax.NamedSharding(mesh, P(None, "a")))
w = jax.device_put(w, jax.NamedSharding(mesh, P(None, "a")))
y = jax.jit(f)(x, w)
for shard in y.addressable_shards:
    got, expected = np.ravel(shard.data), np.ravel(right[shard.index])
    if (got != expected).any():
        print(f"defect: two batch groups: {got}, expected {expected}")
        sys.exit(1)
print("fixed")
