"""An empty array sharded over an explicit axis has shards of the global shape and cannot be read."""
# seen on JAX 0.10.2

import sys

import jax
import jax.numpy as jnp
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))

x = jax.device_put(jnp.zeros((2, 0)), jax.sharding.NamedSharding(mesh, P("d")))
shapes = [shard.data.shape for shard in jax.jit(lambda x: x)(x).addressable_shards]
sys.exit(f"defect: the shards have shapes {shapes}" if shapes != [(1, 0)] * 2 else 0)
