"""Beside an automatic axis that shards an array, a jit called by jax.jacrev loses explicit axes of one in a type."""

import sys

import jax
import jax.numpy as jnp
from jax import P
from jax.sharding import AxisType

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((1, 2), ("a", "b"), axis_types=(AxisType.Explicit, AxisType.Auto))
x = jax.device_put(jnp.arange(4.0), jax.NamedSharding(mesh, P(("a", "b"))))
square = jax.jit(jax.shard_map(lambda x: x * x, mesh=mesh, in_specs=P(("a", "b")), out_specs=P(("a", "b"))))
try:
    jax.jacrev(square)(x)
except ValueError as error:
    sys.exit(f"defect: {error}")
