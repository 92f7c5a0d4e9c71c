"""ppermute over a vmapped axis fails an assertion unless every participant sends, and zero-fills nothing."""

import sys

import jax
import jax.numpy as jnp
from jax import lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)

f = jax.vmap(lambda x: lax.ppermute(x, "v", [(0, 1)]), axis_name="v")
try:
    problem = "" if jax.jit(f)(jnp.ones(2)).tolist() == [0, 1] else "wrong values"
except AssertionError as error:
    problem = f"AssertionError: {error}"
sys.exit(f"defect: {problem}" if problem else 0)
