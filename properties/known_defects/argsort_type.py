"""argsort of what varies is typed as the same everywhere: out_specs=P() is accepted, and residuals are wrong."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
data = np.array([0, 1, 1, 0], np.float32)  # blocks that are sorted differently
try:
    indices = jax.jit(jax.shard_map(jnp.argsort, mesh=mesh, in_specs=P("x"), out_specs=P()))(data)
except ValueError as error:
    if "replication" not in str(error):
        raise
    sys.exit(0)
shards = [np.asarray(shard.data).tolist() for shard in indices.addressable_shards]
sys.exit(f"defect: out_specs=P() is accepted for an order, {shards[0]} on one device and {shards[1]} on the other")
