"""A product over an empty dimension is zeros; inside shard_map it fails while XLA compiles it."""

import sys

import jax
import jax.numpy as jnp
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
product = jax.shard_map(lambda a, b: a @ b, mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d"))
try:
    result = jax.jit(product)(jnp.ones((2, 0)), jnp.ones((0, 1)))
except jax.errors.JaxRuntimeError as error:
    print(f"defect: {str(error).splitlines()[0]}")
    sys.exit(1)
print("fixed" if (result == 0).all() else f"defect: {result}")
sys.exit(not (result == 0).all())
