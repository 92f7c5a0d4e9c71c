"""XLA aborts while it compiles a gather from an array that two axes left to it shard, beside a manual axis."""
# fails with: device_groups.num_devices_per_group()

from functools import partial

import jax
import jax.numpy as jnp
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
mesh = jax.make_mesh((2, 2, 2), ("a", "b", "c"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
x = jax.device_put(jnp.arange(16.0).reshape(4, 4), jax.NamedSharding(mesh, P(("a", "b"), "c")))
columns = partial(jnp.take, indices=jnp.array([0, 2]), axis=1)  # of one sharded dimension: compiled
taken = jax.shard_map(columns, mesh=mesh, in_specs=P("a"), out_specs=P("a"), axis_names={"a"})
assert (jax.jit(taken)(x) == columns(x)).all()
