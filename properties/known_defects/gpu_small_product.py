"""XLA:GPU rounds each term of a small batched product of 16-bit floats to those, though its result is float32."""
# seen on JAX 0.11.2

import sys

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_platforms", "cuda")
x = np.full((2, 2, 2), 1 + 2**-7)  # whose square has 15 bits: float32 has it, bfloat16 has not

product = jax.jit(lambda x, y: jnp.einsum("qhd,khd->hqk", x, y, preferred_element_type=jnp.float32))
result = np.asarray(product(jnp.array(x, jnp.bfloat16), jnp.array(x, jnp.bfloat16)))

expected = 2 * (1 + 2**-7) ** 2
if (result != expected).any():
    sys.exit(f"defect: {result[0, 0, 0]:.7f}, expected {expected:.7f}")
