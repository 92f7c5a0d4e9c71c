"""On explicit axes the gradient of take_along_axis raises where an axis shards the indices, and not the operand."""
# fails with: ValueError: Expected cotangent type

import jax
import jax.numpy as jnp
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Explicit,) * 1)
x = jax.device_put(jnp.ones((2, 2)), jax.NamedSharding(mesh, P()))
i = jax.device_put(jnp.zeros((2, 1), int), jax.NamedSharding(mesh, P("a")))
with jax.set_mesh(mesh):
    y, pull = jax.vjp(lambda x: jnp.take_along_axis(x, i, 1), x)
    pull(y)
