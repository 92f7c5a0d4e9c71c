"""XLA:CPU compiles a float32 product of bfloat16 arrays whose transpose is taken, and cannot run it."""
# fails with: Unsupported element type for DotThunk::Execute: BF16 x BF16 = F32

import jax
import jax.numpy as jnp

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
x, y = jnp.ones((2, 8), jnp.bfloat16), jnp.ones((8, 4), jnp.bfloat16)
print(jax.jit(lambda x, y: jnp.matmul(x, y, preferred_element_type=jnp.float32).T)(x, y))
