"""XLA:CPU compiles no top_k of int4: it raises INVALID_ARGUMENT."""
# fails with: INVALID_ARGUMENT: during context [hlo verifier]

import jax
import jax.numpy as jnp
from jax import lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
jax.jit(lambda x: lax.top_k(x, 2))(jnp.arange(4).astype(jnp.int4))
