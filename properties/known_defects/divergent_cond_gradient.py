"""The gradient of a cond whose predicate varies waits for ever where one branch uses a replica."""
# fails with: Termination timeout for

import os

import jax
import jax.numpy as jnp
from jax import P, lax

limit = "--xla_cpu_collective_call_{}_timeout_seconds=3"
os.environ["XLA_FLAGS"] = f"{limit.format('warn_stuck')} {limit.format('terminate')}"
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
f = lambda x, w: lax.cond(lax.axis_index("d") == 0, lambda x, w: x * w, lambda x, w: w, x, w)
on_mesh = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=(P(), P("d")), out_specs=P("d")))
assert float(jax.jit(jax.grad(lambda x, w: on_mesh(x, w).sum()))(2.0, jnp.array([1.0, 2.0]))) == 1  # one device's w
