"""Half of a batched product is wrong if the axes that shard the batch and the sum change places in the result."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
x, y = np.arange(64.0).reshape(4, 4, 4), np.arange(32.0).reshape(4, 4, 2)
# right on 2 by 2 devices, without a batch, or if the result is first stated to be sharded over "a" alone
held = (jax.device_put(z, jax.NamedSharding(mesh, s)) for z, s in ((x, P("a", None, "b")), (y, P("a", "b"))))
product = jax.jit(jnp.matmul, out_shardings=jax.NamedSharding(mesh, P("b", None, "a")))
wrong = (np.asarray(product(*held)) != x @ y).sum()
sys.exit(f"defect: {wrong} of {y.size} elements" if wrong else 0)
