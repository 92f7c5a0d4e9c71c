"""A batched scatter_add loses rows of its operand where one axis of two shards that, and both shard the indices."""
# seen on JAX 0.10.2

import sys

import jax
import numpy as np
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
x, i, u = np.arange(12.0).reshape(12, 1), np.zeros((12, 4), np.int32), np.ones(12)
f = lambda x, i, u: jax.vmap(lambda x, i, u: x.at[i].add(u))(x, i, u)
right = np.asarray(jax.jit(f)(x, i, u))
x = jax.device_put(x, jax.NamedSharding(mesh, P("a")))
i = jax.device_put(i, jax.NamedSharding(mesh, P("b", "a")))
y = jax.jit(f)(x, i, jax.device_put(u, jax.NamedSharding(mesh, P())))
for shard in y.addressable_shards:
    got, expected = np.ravel(shard.data), np.ravel(right[shard.index])
    if (got != expected).any():
        print(f"defect: four added to each row: {got}, expected {expected}")
        sys.exit(1)
print("fixed")
