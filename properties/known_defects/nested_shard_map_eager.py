"""Without jit, a shard_map inside of another raises where it is replicated along an axis of the outer one."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
inside: Any = {"in_specs": P("b"), "out_specs": P("b"), "axis_names": {"b"}}
f: Any = jax.shard_map(
    lambda x: jax.shard_map(jnp.sin, **inside)(x), mesh=mesh, in_specs=P(), out_specs=P(), axis_names={"a"}
)
x = jnp.arange(4.0)
assert jnp.allclose(jax.jit(f)(x), jnp.sin(x))
try:
    problem = "" if jnp.allclose(f(x), jnp.sin(x)) else "wrong values"
except ValueError as error:
    problem = f"ValueError: {' '.join(str(error).split()[:14])}"
sys.exit(f"defect: {problem}" if problem else 0)
