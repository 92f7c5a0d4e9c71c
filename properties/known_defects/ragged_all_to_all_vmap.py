"""vmap of ragged_all_to_all fails an assertion without a message unless all of its operands are mapped."""
# fails with: AssertionError

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
zero, one = jnp.zeros(1, int), jnp.ones(1, int)
send = lambda x: lax.ragged_all_to_all(x, jnp.zeros_like(x), zero, one, zero, one, axis_name="d")
spec = P(None, "d")

jax.make_jaxpr(jax.shard_map(jax.vmap(send), mesh=mesh, in_specs=spec, out_specs=spec))(jnp.ones((2, 1)))
