"""XLA:CPU: compiling lax.reduce with a while_loop in its function aborts the process."""
# fails with: Check failed: operand_maps.size() == 1

import jax
import jax.numpy as jnp
from jax import lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
loop = lambda a, b: lax.while_loop(lambda c: c < b, lambda c: c + 2, a)
jax.jit(lambda x: lax.reduce(x, jnp.float32(0), loop, (1,)))(jnp.ones((4, 4)))
