"""On explicit axes cholesky, qr and triangular_solve's gradient raise for a sharded batch: their mask has no layout."""
# fails with: ShardingTypeError: select `which` must be scalar

import jax
import jax.numpy as jnp
import numpy as np
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Explicit,) * 1)
x = jax.device_put(np.ones((4, 2, 2)) + np.eye(2), jax.NamedSharding(mesh, P("a")))
with jax.set_mesh(mesh):
    jax.block_until_ready(jax.jit(lambda x: jnp.linalg.cholesky(x))(x))
