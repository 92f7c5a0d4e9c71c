"""XLA:GPU compiles no loop over rows that are no whole number of bytes: it raises INTERNAL."""
# seen on JAX 0.11.2

import sys

import jax
import jax.numpy as jnp
from jax import lax

jax.config.update("jax_platforms", "cuda")
x = jnp.arange(6).reshape(2, 3).astype(jnp.uint4)  # with rows of two elements, or of uint8, both are compiled
LOOPS = {
    "scan": lambda x: lax.scan(lambda carry, row: (carry, row + row), 0, x)[1],
    "fori_loop": lambda x: lax.fori_loop(0, len(x), lambda i, total: total + x[i], jnp.zeros_like(x[0])),
}
refused = {}
for name, loop in LOOPS.items():
    try:
        jax.jit(loop)(x)
    except jax.errors.JaxRuntimeError as error:
        refused[name] = str(error).splitlines()[0]
sys.exit(f"defect: {refused}" if refused else 0)
