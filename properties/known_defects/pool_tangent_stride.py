"""XLA refuses the JVP of a maximum over padded windows of a stride: its parts come in different shapes."""
# fails with: INVALID_ARGUMENT: All reduced tensors must have the same dimension

import jax
import jax.numpy as jnp
import numpy as np
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
pool = lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 1), (2, 1, 1), [(2, 1), (0, 0), (2, 0)])
x = jax.device_put(np.ones((4, 2, 4), np.float32), jax.NamedSharding(mesh, P(("b", "a"))))
jax.block_until_ready(
    jax.jit(lambda x: jax.jvp(pool, (x,), (x,))[1], out_shardings=jax.NamedSharding(mesh, P("a", "b")))(x)
)
