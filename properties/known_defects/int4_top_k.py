"""XLA:CPU compiles no top_k of int4: it raises INVALID_ARGUMENT."""

import sys

import jax
import jax.numpy as jnp
from jax import lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
try:
    jax.jit(lambda x: lax.top_k(x, 2))(jnp.arange(4).astype(jnp.int4))
    found = ""
except jax.errors.JaxRuntimeError as error:
    found = str(error).partition("\n")[0]
sys.exit(f"defect: {found[:150]}" if found else 0)
