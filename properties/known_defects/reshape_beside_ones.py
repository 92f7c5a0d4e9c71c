"""On explicit axes a split beside dimensions of one element fails an assertion, or is refused."""
# seen on JAX 0.10.2
# fails with: AssertionError

import jax
import jax.numpy as jnp
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
x = jax.device_put(jnp.zeros((4, 1, 1)), jax.NamedSharding(mesh, P("d")))
x.reshape(2, 1, 2, 1)
