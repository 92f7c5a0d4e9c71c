"""On explicit axes the inverses of a sharded batch raise for an operand that is made inside."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Explicit,) * 1)
x = jax.device_put(np.ones((4, 2, 2)) + np.eye(2), jax.NamedSharding(mesh, P("a")))
try:
    with jax.set_mesh(mesh):
        jax.block_until_ready(jax.jit(lambda x: jnp.linalg.inv(x))(x))
    found = ""
except Exception as error:
    found = f"{type(error).__name__}: {error}".partition("\n")[0]
sys.exit(f"defect: {found[:150]}" if found else 0)
