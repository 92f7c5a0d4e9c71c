"""Beside an automatic axis that shards an array, its type loses explicit axes of one: shard_map raises."""

import sys

import jax
import jax.numpy as jnp
from jax import P
from jax.sharding import AxisType

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((1, 2, 2), ("a", "b", "c"), axis_types=(AxisType.Explicit, AxisType.Explicit, AxisType.Auto))
x = jax.device_put(jnp.ones((4, 2)), jax.NamedSharding(mesh, P(("a", "b"), "c")))
of_each = jax.shard_map(jnp.exp, mesh=mesh, in_specs=P(("a", "b")), out_specs=P(("a", "b")), axis_names={"a", "b"})
try:
    typed, expected = (jax.typeof(y).sharding.spec for y in (of_each(x), x))
    problem = f"typed {typed}, expected {expected}" if typed != expected else ""
except ValueError as error:
    problem = str(error).partition(". ")[0]
sys.exit(f"defect: {problem}" if problem else 0)
