"""A sharded dimension is merged with another, and dimensions of one element are added: IndexError."""

import sys

import jax
import jax.numpy as jnp
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
x = jax.device_put(jnp.zeros((4, 2)), jax.NamedSharding(mesh, P("d")))
try:
    told = str(jax.typeof(x.reshape(8, 1, 1)))
except Exception as error:  # a sharding type error, which has no public name, is an answer
    told = f"{type(error).__name__}: {error}"
wrong = told.startswith("IndexError")
print(f"defect: {told} for {jax.typeof(x)} to (8, 1, 1)" if wrong else "fixed")
sys.exit(wrong)
