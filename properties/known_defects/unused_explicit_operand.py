"""Without jit, the gradient by an operand that does not matter raises where an explicit axis shards it."""
# fails with: ValueError: Passing lowering_platforms

import jax
import jax.numpy as jnp
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
x = jax.device_put(jnp.ones(4), jax.sharding.NamedSharding(mesh, P("d")))

gradient, _ = jax.grad(lambda x, y: y, argnums=(0, 1))(x, 1.0)
assert (gradient == 0).all()
