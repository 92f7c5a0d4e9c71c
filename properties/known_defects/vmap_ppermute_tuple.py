"""ppermute over a tuple of a vmapped axis and a mesh axis silently drops the vmapped one."""

import sys

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

send = jax.vmap(lambda x: lax.ppermute(x, ("v", "d"), [(0, 1)]), axis_name="v")
f = jax.shard_map(send, mesh=mesh, in_specs=P(None, "d"), out_specs=P(None, "d"), check_vma=False)
result = jax.jit(f)(jnp.array([[1, 2], [3, 4]])).tolist()
sys.exit(f"defect: what 0 sends to 1 arrives as {result}" if result != [[0, 1], [0, 0]] else 0)
