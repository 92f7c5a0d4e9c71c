"""The derivative of jnp.sinc raises inside of shard_map, unless types are not checked."""
# seen on JAX 0.12.0.1
# fails with: Primitive polynomial requires varying manual axes to match

import jax
import jax.numpy as jnp
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
slope = jax.grad(lambda x: jnp.sinc(x).sum())
print(jax.shard_map(slope, mesh=mesh, in_specs=P("d"), out_specs=P("d"))(jnp.array([0.5, 1.5])))
