"""vmap with spmd_axis_name of a shard_map that has a loop, a branch or remat in it raises for its types."""
# fails with: ValueError: Scan carry input and output got mismatched varying manual axes

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
f = jax.shard_map(
    lambda x: lax.fori_loop(0, 2, lambda i, y: lax.ppermute(y, "a", [(0, 1), (1, 0)]), x),
    mesh=mesh,
    in_specs=P("a"),
    out_specs=P("a"),
)
x = jnp.arange(8.0).reshape(2, 4)
assert (jax.jit(jax.vmap(f))(x) == x).all()
assert (jax.jit(jax.vmap(f, spmd_axis_name="b"))(x) == x).all()
