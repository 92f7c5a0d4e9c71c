"""vmap of an untiled psum_scatter raises IndexError where the batch dimension comes last."""
# fails with: IndexError: tuple index out of range

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

batched = jax.vmap(lambda x: lax.psum_scatter(x, "d"), in_axes=-1, out_axes=-1)
f = jax.shard_map(batched, mesh=mesh, in_specs=P(None, "d"), out_specs=P("d"))
assert (jax.jit(f)(jnp.ones((2, 6))) == 2).all()
