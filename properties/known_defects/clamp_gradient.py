"""On explicit axes the gradient of clamp by a bound is refused where an axis shards that, and not the operand."""
# fails with: select cases must have the same shardings

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Explicit,) * 1)
x = jax.device_put(jnp.ones(2), jax.NamedSharding(mesh, P()))
low = jax.device_put(jnp.zeros(2), jax.NamedSharding(mesh, P("a")))
lax.clamp(low, x, x)
jax.vjp(lambda low: lax.clamp(low, x, x), low)
