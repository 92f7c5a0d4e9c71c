"""XLA:GPU runs no ragged_all_to_all of booleans: it raises INVALID_ARGUMENT."""
# seen on JAX 0.11.2

import sys

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cuda")
mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
zero, one = jnp.zeros(1, int), jnp.ones(1, int)
send = lambda x: lax.ragged_all_to_all(x, jnp.zeros_like(x), zero, one, zero, one, axis_name="d")

try:
    jax.jit(jax.shard_map(send, mesh=mesh, in_specs=P("d"), out_specs=P("d")))(jnp.ones(1, bool))
except jax.errors.JaxRuntimeError as error:
    sys.exit(f"defect: {str(error).splitlines()[0]}")
