"""A program compiled ahead of time refuses a sharded array of 4-bit integers of NumPy's that `jit` takes."""
# seen on JAX 0.10.2
# fails with: ValueError: Computation was compiled for input layouts that disagree with the layouts of arguments

import jax
import jax.numpy as jnp
import numpy as np
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
x = jax.device_put(np.arange(2).astype(jnp.int4.dtype), jax.sharding.NamedSharding(mesh, P("d")))
program = jax.jit(lambda x: x)
program(x)
program.lower(x).compile()(x)
