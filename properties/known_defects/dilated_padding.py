"""A pad between elements of a replicated array is wrong, or fails, where its result is to be sharded."""

import sys

import jax
import numpy as np
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Auto,) * 1)
x = jax.device_put(np.array([1, 2]), jax.NamedSharding(mesh, P()))
y = jax.jit(lambda x: lax.pad(x, 0, [(1, 0, 1)]), out_shardings=jax.NamedSharding(mesh, P("a")))(x)
got = [np.asarray(shard.data).tolist() for shard in y.addressable_shards]
wrong = got != [[0, 1], [0, 2]]
print(f"defect: the shards are {got}, expected [[0, 1], [0, 2]]" if wrong else "fixed")
sys.exit(wrong)
