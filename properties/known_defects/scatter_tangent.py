"""On explicit axes the JVP of .at[].set along a dimension that nothing shards is refused."""
# fails with: ShardingTypeError: Use `.at[...].set/add/mul/...(out_sharding=)`

import jax
import jax.numpy as jnp
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Explicit,) * 1)
x = jax.device_put(jnp.ones((2, 2)), jax.NamedSharding(mesh, P(None, "a")))
i = jnp.array([0])
f = lambda x: x.at[i].set(2.0)
with jax.set_mesh(mesh):
    y = jax.jit(f)(x)  # this is accepted
    jax.eval_shape(lambda x: jax.jvp(f, (x,), (x,)), x)
