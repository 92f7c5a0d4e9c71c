"""XLA:CPU aborts while it compiles a bfloat16 reduction over devices beside an axis that is not manual."""
# fails with: Invalid binary instruction opcode copy

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
total = jax.shard_map(lambda x: lax.psum(x, "a"), mesh=mesh, in_specs=P("a"), out_specs=P(), axis_names={"a"})
jax.jit(total)(jnp.ones(2, jnp.bfloat16))  # float16 and float32 are compiled
