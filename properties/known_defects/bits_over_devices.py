"""XLA:CPU compiles no reduction over devices but of sums, products and maxima: reduce_xor raises UNIMPLEMENTED."""

import sys

import jax
import numpy as np
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Auto,) * 1)
x = jax.device_put(np.arange(2), jax.NamedSharding(mesh, P("a")))
try:
    jax.block_until_ready(jax.jit(lambda x: lax.reduce_xor(x, (0,)))(x))
    found = ""
except jax.errors.JaxRuntimeError as error:
    found = f"{type(error).__name__}: {error}".partition("\n")[0]
sys.exit(f"defect: {found[:150]}" if found else 0)
