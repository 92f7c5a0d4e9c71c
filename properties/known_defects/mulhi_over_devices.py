"""XLA lowers no mulhi for a mesh of several devices: it raises INTERNAL."""
# fails with: INTERNAL: Unable to convert MHLO to StableHLO

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Auto,) * 1)
x = jax.device_put(jnp.ones(2, int), jax.NamedSharding(mesh, P("a")))
jax.jit(lambda x: lax.mulhi(x, x))(x)
