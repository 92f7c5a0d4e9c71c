"""XLA:CPU: all_to_all of int2 aborts the process."""
# fails with: Check failed: bit_offset != nullptr

import contextlib

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
f = jax.shard_map(lambda x: lax.all_to_all(x, "d", 0, 0, tiled=True), mesh=mesh, in_specs=P("d"), out_specs=P("d"))
with contextlib.suppress(jax.errors.JaxRuntimeError):  # a refusal is right
    jax.jit(f)(jnp.zeros(16, jnp.int2))
