"""On explicit axes the gradient of a pad along a sharded dimension is refused if parts are uneven on the way."""
# fails with: padding on sharded dims where out dim

import jax
import numpy as np
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Explicit,) * 1)
x = jax.device_put(np.arange(2.0), jax.NamedSharding(mesh, P("a")))
f = lambda x: lax.pad(x, x.dtype.type(0), [(0, -1, 1)])
with jax.set_mesh(mesh):
    y, pull = jax.vjp(f, x)
    pull(y)
