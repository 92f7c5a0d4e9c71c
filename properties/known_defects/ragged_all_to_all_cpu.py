"""XLA:CPU compiles no ragged_all_to_all: it raises UNIMPLEMENTED."""
# fails with: UNIMPLEMENTED: HLO opcode `ragged-all-to-all` is not supported

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
zero, one = jnp.zeros(1, int), jnp.ones(1, int)
send = lambda x: lax.ragged_all_to_all(x, jnp.zeros_like(x), zero, one, zero, one, axis_name="d")

jax.jit(jax.shard_map(send, mesh=mesh, in_specs=P("d"), out_specs=P("d")))(jnp.ones(1))
