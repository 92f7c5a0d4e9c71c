"""A tiled psum_scatter over one axis, beside another that is explicit and not manual, fails while it is lowered."""

import sys

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
scatter = lambda x: lax.psum_scatter(x, "a", tiled=True)
x = jax.device_put(jnp.ones(4), jax.NamedSharding(mesh, P("a")))
try:
    y = jax.jit(jax.shard_map(scatter, mesh=mesh, in_specs=P("a"), out_specs=P("a"), axis_names={"a"}))(x)
except ValueError as error:
    print(f"defect: {error}")
    sys.exit(1)
print("fixed" if (y == 2).all() else f"defect: {y}")
sys.exit(not (y == 2).all())
