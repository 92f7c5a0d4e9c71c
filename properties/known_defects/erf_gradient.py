"""The gradient of erf and erfc, and so of an exact GELU, raises where the operand varies."""
# seen on JAX 0.12.0.1
# fails with: ValueError: Primitive polynomial requires varying manual axes to match

import jax
import jax.numpy as jnp
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
slope = jax.grad(lambda x: jax.nn.gelu(x, approximate=False).sum())
jax.eval_shape(jax.shard_map(slope, mesh=mesh, in_specs=P("x"), out_specs=P("x")), jnp.ones(2))
