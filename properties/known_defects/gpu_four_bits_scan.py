"""XLA:GPU compiles no scan that computes with rows of integers of 4 bits: it raises INTERNAL."""

import sys

import jax
import jax.numpy as jnp
from jax import lax

jax.config.update("jax_platforms", "cuda")
x = jnp.arange(2).reshape(2, 1).astype(jnp.uint4)

try:
    result = jax.jit(lambda x: lax.scan(lambda carry, row: (carry, row + row), 0, x)[1])(x)
    print(f"fixed\n{result}")
except jax.errors.JaxRuntimeError as error:
    print(f"defect: {str(error).splitlines()[0]}")
    sys.exit(1)
