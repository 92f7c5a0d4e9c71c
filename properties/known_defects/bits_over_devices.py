"""XLA:CPU compiles no reduction over devices but of sums, products and maxima: reduce_xor raises UNIMPLEMENTED."""
# fails with: UNIMPLEMENTED: Unsupported reduction computation

import jax
import numpy as np
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Auto,) * 1)
x = jax.device_put(np.arange(2), jax.NamedSharding(mesh, P("a")))
jax.block_until_ready(jax.jit(lambda x: lax.reduce_xor(x, (0,)))(x))
