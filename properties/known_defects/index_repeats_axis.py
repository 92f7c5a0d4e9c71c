"""On explicit axes indices over the axis that shards another dimension of the operand raise DuplicateSpecError."""
# fails with: DuplicateSpecError: A single NamedSharding

import jax
import numpy as np
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Explicit,) * 1)
x = jax.device_put(np.ones((4, 4)), jax.NamedSharding(mesh, P("a")))
i = jax.device_put(np.arange(2), jax.NamedSharding(mesh, P("a")))
with jax.set_mesh(mesh):
    jax.block_until_ready(jax.jit(lambda x, i: x.at[:, i].get())(x, i))
