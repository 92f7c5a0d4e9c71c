"""XLA:GPU crashes while it compiles the ppermute of a scalar of less than a byte, as of int4."""
# seen on JAX 0.11.2

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cuda")
mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
send = lambda x: lax.ppermute(x, "d", [(0, 0)])
program = jax.shard_map(send, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
jax.jit(program)(jnp.zeros((), jnp.int4))  # of int8, or of shape [1], it is compiled
