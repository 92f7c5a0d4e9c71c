"""pmax with axis_index_groups is typed invariant although the groups hold different values."""

import sys

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

groups = [[0, 1], [2, 3]]
f = jax.shard_map(lambda x: lax.pmax(x, "d", axis_index_groups=groups), mesh=mesh, in_specs=P("d"), out_specs=P())
try:
    replicas = {int(shard.data[0]) for shard in jax.jit(f)(jnp.arange(4)).addressable_shards}
except (NotImplementedError, ValueError):
    replicas = set()
sys.exit(f"defect: the replicas of one array hold {sorted(replicas)}" if len(replicas) > 1 else 0)
