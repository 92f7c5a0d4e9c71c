"""On explicit axes the gradient of a sort along a dimension that nothing shards is refused."""
# seen on JAX 0.10.2
# fails with: ShardingTypeError: Arguments to sort must have equal shardings

import jax
import numpy as np
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Explicit,) * 1)
x = jax.device_put(np.ones((4, 4)), jax.NamedSharding(mesh, P("a")))
f = lambda x: lax.sort(x, 1)
with jax.set_mesh(mesh):
    y = jax.jit(f)(x)  # this is accepted
    jax.eval_shape(lambda x, y: jax.vjp(f, x)[1](y), x, y)
