"""On explicit axes the gradient of the determinants of a sharded batch is refused."""
# seen on JAX 0.12.0.1
# fails with: ShardingTypeError: All inputs to triangular_solve must have the same batch sharding

import jax
import jax.numpy as jnp
import numpy as np
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Explicit,) * 1)
x = jax.device_put(np.ones((4, 3, 3)) + np.eye(3), jax.NamedSharding(mesh, P("a")))
f = lambda x: jnp.linalg.det(x)
with jax.set_mesh(mesh):
    y = jax.jit(f)(x)  # this is accepted
    jax.eval_shape(lambda x, y: jax.vjp(f, x)[1](y), x, y)
