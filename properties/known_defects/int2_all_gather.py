"""XLA:CPU: all_gather of int2 returns garbage, or crashes on larger blocks."""

import sys

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
gather = jax.shard_map(lambda x: lax.all_gather(x, "d", tiled=True), mesh=mesh, in_specs=P("d"), out_specs=P("d"))
x = jnp.array([1, 0, -1, -2])
results = [jax.jit(gather)(x.astype(jnp.int2)).astype(int).tolist() for _ in range(50)]
wrong = [result for result in results if result != [*x.tolist(), *x.tolist()]]  # now and then it is right
sys.exit(f"defect: {wrong[0]}" if wrong else 0)
