"""XLA aborts while it compiles a pad between elements that takes away the first, along a sharded dimension."""

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((4,), ("a",), axis_types=(jax.sharding.AxisType.Auto,) * 1)
x = jax.device_put(jnp.arange(8), jax.NamedSharding(mesh, P("a")))
f = lambda x: lax.pad(x, 0, [(-1, 0, 2)])
jax.jit(f)(x)
