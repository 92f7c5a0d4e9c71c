"""A psum_scatter beside an explicit axis that is not manual cannot be lowered, and untiled not be traced."""
# seen on JAX 0.11.2, 0.12.0.1

import sys
from functools import partial

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
x = jax.device_put(jnp.ones(4), jax.NamedSharding(mesh, P("a")))
wrong = []
for tiled in (True, False):
    local = lambda x, tiled: lax.psum_scatter(x, "a", tiled=tiled).reshape(1)
    scatter = jax.shard_map(partial(local, tiled=tiled), mesh=mesh, in_specs=P("a"), out_specs=P("a"), axis_names={"a"})
    try:
        y = jax.jit(scatter)(x)
        wrong += [] if (y == 2).all() else [f"{tiled=}: {y}"]
    except ValueError as error:
        wrong.append(f"{tiled=}: {error}")
sys.exit(f"defect: {'; '.join(wrong)}" if wrong else 0)
