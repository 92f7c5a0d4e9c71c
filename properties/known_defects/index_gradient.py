"""On explicit axes the gradient of one element of a sharded array raises, though it may be taken."""
# seen on JAX 0.12.0.1

import sys

import jax
import numpy as np
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Explicit,) * 1)
x = jax.device_put(np.arange(2.0), jax.NamedSharding(mesh, P("a")))
f = lambda x: x[1]
with jax.set_mesh(mesh):
    found, y = "", None
    try:
        y = jax.jit(f)(x)  # this is accepted
        jax.eval_shape(lambda x, y: jax.vjp(f, x)[1](y), x, y)
    except Exception as error:  # a sharding type error has no public name
        found = f"{type(error).__name__}: {error}".partition("\n")[0] if y is not None else ""
sys.exit(f"defect: {found[:150]}" if found else 0)
