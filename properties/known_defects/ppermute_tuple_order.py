"""ppermute over a tuple out of mesh order numbers devices in mesh order (0.10) or is refused (0.12)."""

import sys

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

ba = ("b", "a")
f = jax.shard_map(lambda x: lax.ppermute(x, ba, [(0, 1)]), mesh=mesh, in_specs=P(ba), out_specs=P(ba))
try:
    result = jax.jit(f)(jnp.ones(4)).tolist()
    problem = "" if result == [0, 1, 0, 0] else f"what 0 sends to 1 arrives as {result}"
except RuntimeError as error:
    problem = f"refused: {error}"
sys.exit(f"defect: {problem}" if problem else 0)
