"""On explicit axes the inverses of a sharded batch raise for an operand that is made inside."""
# fails with: ValueError: Mapped away dimension of inputs passed to vmap should be sharded the same

import jax
import jax.numpy as jnp
import numpy as np
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Explicit,) * 1)
x = jax.device_put(np.ones((4, 2, 2)) + np.eye(2), jax.NamedSharding(mesh, P("a")))
with jax.set_mesh(mesh):
    jax.block_until_ready(jax.jit(lambda x: jnp.linalg.inv(x))(x))
