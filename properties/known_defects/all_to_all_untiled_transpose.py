"""The gradient of an untiled all_to_all raises ValueError unless split_axis equals concat_axis."""
# fails with: ValueError: Expected cotangent type

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

f = jax.shard_map(
    lambda x: lax.all_to_all(x, "d", split_axis=0, concat_axis=1), mesh=mesh, in_specs=P("d"), out_specs=P("d")
)
gradient = jax.grad(lambda x: jax.jit(f)(x).sum())(jnp.zeros((4, 3)))
assert (gradient == 1).all()
