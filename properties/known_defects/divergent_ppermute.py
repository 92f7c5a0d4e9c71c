"""XLA:CPU: a ppermute over one axis, under a predicate that differs only along another, never ends."""
# fails with: Termination timeout for

import os

import jax
import jax.numpy as jnp
from jax import P, lax

limit = "--xla_cpu_collective_call_{}_timeout_seconds=3"
os.environ["XLA_FLAGS"] = f"{limit.format('warn_stuck')} {limit.format('terminate')}"
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((2, 2), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
f = lambda x: lax.cond(lax.axis_index("dp") == 0, lambda x: lax.ppermute(x, "tp", [(0, 1), (1, 0)]), lambda x: x, x)
jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P(("dp", "tp")), out_specs=P(("dp", "tp"))))(jnp.arange(4.0)).tolist()
