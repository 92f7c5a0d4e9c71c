"""A scatter_add of no updates by indices that are sharded over two axes is zero on some of the devices."""
# seen on JAX 0.10.2

import sys

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
indices = jax.device_put(jnp.arange(4).reshape(2, 2), jax.NamedSharding(mesh, P("a", "b")))
numbers = lax.ScatterDimensionNumbers((1, 2, 3), (), (0, 2))
add = jax.jit(lambda x, i, y: lax.scatter_add(x, i, y, numbers, mode="drop"))
got = add(jnp.ones((1, 1, 2)), indices, jnp.zeros((2, 0, 0, 0)))
wrong = [shard.device.id for shard in got.addressable_shards if (shard.data != 1).any()]
sys.exit(f"defect: zero on devices {wrong}" if wrong else 0)
