"""pbroadcast over one named axis iterates over the letters of the name and raises NameError."""
# fails with: NameError: Found an unbound axis name: d.

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("dp",), axis_types=(jax.sharding.AxisType.Auto,))

f = jax.shard_map(lambda x: lax.pbroadcast(x, "dp", 1), mesh=mesh, in_specs=P("dp"), out_specs=P("dp"))
jax.eval_shape(f, jnp.ones(2))
