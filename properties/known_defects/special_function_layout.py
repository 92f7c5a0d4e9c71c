"""On explicit axes betainc, and igammac by a replicated array, are accepted while tracing and fail while lowering."""
# fails with: ShardingTypeError: select `which` must be scalar

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Explicit,) * 1)
x = jax.device_put(jnp.ones(2), jax.NamedSharding(mesh, P("a")))
with jax.set_mesh(mesh):
    jax.jit(lambda x: lax.betainc(x, x, x / 2))(x)
