"""XLA:GPU raises INTERNAL, or aborts, while it compiles the psum or psum_scatter of a complex constant."""
# seen on JAX 0.11.2
# fails with: Check failed: buffer != nullptr

import sys

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cuda")
mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
add_ones = lambda x: x + lax.psum(jnp.ones_like(x), "d")  # of -jnp.ones_like(x), it aborts
program = jax.shard_map(add_ones, mesh=mesh, in_specs=P(), out_specs=P())

try:
    jax.jit(program)(jnp.ones(2, complex))  # of float32, it is compiled
except jax.errors.JaxRuntimeError as error:
    sys.exit(f"defect: {str(error).splitlines()[0]}")
