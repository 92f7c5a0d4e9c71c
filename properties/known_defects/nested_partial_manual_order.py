"""XLA aborts while it compiles a shard_map in one of a later axis, beside an axis that is not manual."""
# seen on JAX 0.11.2, 0.12.0.1
# fails with: Manual axes must be sorted by mesh axis index

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
mesh = jax.make_mesh((2, 2, 2), ("a", "b", "c"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
inner = jax.shard_map(lambda x: lax.psum(x, "a"), in_specs=P("a"), out_specs=P(), axis_names={"a"})
outer = jax.shard_map(inner, mesh=mesh, in_specs=P("b"), out_specs=P("b"), axis_names={"b"})
assert jax.jit(outer)(jnp.arange(8.0)).tolist() == [2, 4, 10, 12]
