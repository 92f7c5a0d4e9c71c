"""XLA raises INTERNAL for a slice of one element of a sharded dimension whose stride is longer than what is left."""
# fails with: INTERNAL: during context [hlo verifier]

import jax
import numpy as np
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((4,), ("a",), axis_types=(jax.sharding.AxisType.Auto,) * 1)
x = jax.device_put(np.arange(4), jax.NamedSharding(mesh, P("a")))
jax.block_until_ready(jax.jit(lambda x: x[2:3:3])(x))
