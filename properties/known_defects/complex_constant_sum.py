"""XLA:CPU aborts while it compiles the psum or psum_scatter of a complex constant."""
# fails with: Check failed: buffer != nullptr

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
add_ones = lambda x: x + lax.psum(jnp.ones_like(x), "d")
program = jax.shard_map(add_ones, mesh=mesh, in_specs=P(), out_specs=P())
jax.jit(program)(jnp.ones(2, complex))  # of float32, it is compiled
