"""On explicit axes lgamma and igamma of a sharded array are accepted while tracing and fail while lowering."""
# seen on JAX 0.12.0.1
# fails with: ShardingTypeError: Use `.at[...].get(out_sharding=)`

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Explicit,) * 1)
x = jax.device_put(jnp.ones(2), jax.NamedSharding(mesh, P("a")))
with jax.set_mesh(mesh):
    jax.jit(lambda x: lax.lgamma(x))(x)
