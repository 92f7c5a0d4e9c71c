"""On explicit axes the gradient of the singular vectors of a sharded batch raises."""
# fails with: ValueError: Incompatible types for broadcasting

import jax
import jax.numpy as jnp
import numpy as np
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Explicit,) * 1)
x = jax.device_put(np.ones((4, 2, 2)) + np.eye(2), jax.NamedSharding(mesh, P("a")))
f = lambda x: jnp.linalg.svd(x)[0]
with jax.set_mesh(mesh):
    y = jax.jit(f)(x)  # this is accepted
    jax.eval_shape(lambda x, y: jax.vjp(f, x)[1](y), x, y)
