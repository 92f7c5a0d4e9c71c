"""XLA aborts while it compiles the gradient of a padded, strided convolution whose result is to be sharded."""
# fails with: get_first_valid_element_offset_on_dilated_shard

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Auto,) * 1)
x, w = jnp.ones((1, 1, 6)), jnp.ones((1, 1, 1))
f = lambda x: lax.conv_general_dilated(x, w, (3,), [(1, 2)]).sum()
jax.jit(jax.grad(f), out_shardings=jax.NamedSharding(mesh, P(None, None, "a")))(x)
