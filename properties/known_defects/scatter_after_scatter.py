"""An update of the first row overwrites that of each shard, of what a scatter_add of sharded rows has returned."""
# seen on JAX 0.10.2

import sys

import jax
import numpy as np
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Auto,) * 1)
x, i, rows = np.zeros((4, 1)), np.zeros(1, int), np.arange(1.0, 5).reshape(4, 1)
f = lambda x, i, rows: x.at[:, i].add(rows).at[0].set(9)
x, i = (jax.device_put(z, jax.NamedSharding(mesh, P())) for z in (x, i))
y = jax.jit(f)(x, i, jax.device_put(rows, jax.NamedSharding(mesh, P("a"))))
got = np.asarray(y).ravel().tolist()
print(f"defect: {got}, expected [9.0, 2.0, 3.0, 4.0]" if got != [9, 2, 3, 4] else "fixed")
sys.exit(got != [9, 2, 3, 4])
