"""XLA aborts where rows that were shifted move to an axis of another size: it cannot slice a dimension."""
# seen on JAX 0.12.0.1

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 6)
mesh = jax.make_mesh((2, 3), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
x = jax.device_put(jnp.ones((1, 6, 6)), jax.NamedSharding(mesh, P(None, "b", "a")))
f = lambda x: lax.fori_loop(0, 2, lambda i, x: jnp.pad(x, [(1, 0), (0, 0), (0, 0)])[:-1], x)
jax.jit(f, out_shardings=jax.NamedSharding(mesh, P(None, ("a", "b"))))(x)
