"""On explicit axes a merge of an empty dimension that an axis shards raises IndexError."""

import sys

import jax
import jax.numpy as jnp
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
x = jax.device_put(jnp.zeros((0, 2)), jax.NamedSharding(mesh, P("d")))
try:
    print("fixed", jax.typeof(x.reshape(0)), sep="\n")
except IndexError as error:
    print(f"defect: IndexError for {jax.typeof(x)} to (0,): {error}")
    sys.exit(1)
