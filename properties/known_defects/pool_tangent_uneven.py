"""XLA aborts while it compiles the JVP of a maximum over padded windows, on a mesh of two axes."""

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
x = jax.device_put(jnp.arange(192.0).reshape(4, 3, 16), jax.NamedSharding(mesh, P(("b", "a"))))
pool = lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 3, 1), (2, 3, 1), ((3, 2), (3, 1), (0, 0)))
f = lambda x: jax.jvp(pool, (x,), (x,))[1]
jax.jit(f, out_shardings=jax.NamedSharding(mesh, P("a")))(x)
