"""XLA:CPU: the maximum or minimum over devices ignores NaN, which jax.numpy propagates."""

import sys

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

f = jax.shard_map(lambda x: lax.pmax(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P())
result = jax.jit(f)(jnp.array([jnp.nan, 1.0]))[0]
sys.exit(0 if jnp.isnan(result) else f"defect: the maximum of NaN and 1 is {result}")
