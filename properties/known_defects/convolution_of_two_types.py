"""XLA raises INTERNAL for a convolution of a padded, sharded array whose result has a wider type."""
# fails with: types of different precisions

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Auto,) * 1)
x = jax.device_put(jnp.ones((1, 1, 4), jnp.bfloat16), jax.NamedSharding(mesh, P(None, None, "a")))
w = jnp.ones((1, 1, 1), jnp.bfloat16)
jax.jit(lambda x: lax.conv_general_dilated(x, w, (1,), [(0, 1)], preferred_element_type=jnp.float32))(x)
