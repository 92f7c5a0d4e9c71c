"""The gradient of a shard_map inside of another raises, or hangs: residuals name axes of the outer one."""
# fails with: ValueError: Cannot lower jaxpr with verifier errors

from typing import Any

import jax
import jax.numpy as jnp
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
inside: Any = {"in_specs": P("b"), "out_specs": P("b"), "axis_names": {"b"}}
f: Any = jax.shard_map(
    lambda x: jax.shard_map(jnp.sin, **inside)(x), mesh=mesh, in_specs=P("a"), out_specs=P("a"), axis_names={"a"}
)
x = jnp.arange(8.0)
assert jnp.allclose(jax.jit(jax.grad(lambda x: f(x).sum()))(x), jnp.cos(x))
