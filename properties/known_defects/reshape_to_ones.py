"""On explicit axes a merge that adds dimensions of one element raises IndexError."""
# seen on JAX 0.11.2, 0.12.0.1

import sys

import jax
import jax.numpy as jnp
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
x = jax.device_put(jnp.zeros((4, 2)), jax.NamedSharding(mesh, P("d")))
try:
    found = str(jax.typeof(x.reshape(8, 1, 1)))
except Exception as error:  # a sharding type error, which has no public name, is an answer
    found = f"{type(error).__name__}: {error}"
wrong = found.startswith("IndexError")
sys.exit(f"defect: {found} for {jax.typeof(x)} to (8, 1, 1)" if wrong else 0)
