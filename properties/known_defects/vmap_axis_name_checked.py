"""Inside shard_map with check_vma=True, collectives over a named axis of vmap fail an assertion."""
# fails with: AssertionError

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

total = jax.vmap(lambda x: lax.psum(x, "v"), axis_name="v", out_axes=None)
f = jax.shard_map(total, mesh=mesh, in_specs=P(None, "d"), out_specs=P("d"))
assert jax.jit(f)(jnp.array([[1, 1], [2, 2]])).tolist() == [3, 3]
