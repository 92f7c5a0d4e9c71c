"""The psum of a product over an empty dimension is zeros; it fails while XLA compiles it."""

import sys

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
total = jax.shard_map(lambda a, b: lax.psum(a @ b.T, "d"), mesh=mesh, in_specs=(P(), P("d")), out_specs=P())
try:
    result = jax.jit(total)(jnp.ones((1, 0)), jnp.ones((2, 0)))
except jax.errors.JaxRuntimeError as error:
    print(f"defect: {str(error).splitlines()[0]}")
    sys.exit(1)
print("fixed" if (result == 0).all() else f"defect: {result}")
sys.exit(not (result == 0).all())
