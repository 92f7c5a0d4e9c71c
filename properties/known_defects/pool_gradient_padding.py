"""The gradient of a maximum over windows loses what comes from windows across the edge of a shard."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Auto,) * 1)
x = np.arange(2.0)
f = lambda x: jax.grad(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2,), (1,), [(1, 1)]).sum())(x)
right = np.asarray(jax.jit(f)(x))
x = jax.device_put(x, jax.NamedSharding(mesh, P("a")))
y = jax.jit(f)(x)
for shard in y.addressable_shards:
    got, expected = np.ravel(shard.data), np.ravel(right[shard.index])
    if (got != expected).any():
        sys.exit(f"defect: windows that an element is the greatest of: {got[:9]}, expected {expected[:9]}")
