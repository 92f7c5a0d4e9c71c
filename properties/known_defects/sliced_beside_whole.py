"""XLA returns only part of an array that two axes shard if a slice of it is returned as well."""

import sys

import jax
import numpy as np
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
x = jax.device_put(np.arange(8).reshape(4, 2), jax.NamedSharding(mesh, P(("a", "b"))))
wanted = jax.NamedSharding(mesh, P(None, "a")), jax.NamedSharding(mesh, P())
part, whole = jax.jit(lambda x: (x[:3], x), out_shardings=wanted)(x)
got = np.asarray(whole.addressable_shards[0].data).shape
print(f"defect: a replica of all four rows has the shape {got}" if got != (4, 2) else "fixed")
sys.exit(got != (4, 2))
