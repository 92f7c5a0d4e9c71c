"""The gradient of ragged_all_to_all by `output` is wrong where an empty slice has the offset of another."""

import sys

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

# device 0 sends two rows to row 0 of each device, device 1 sends none to row 0
sizes = (jnp.zeros(4, int), jnp.array([2, 2, 0, 0]), jnp.zeros(4, int), jnp.array([2, 0, 2, 0]))
gradient = jax.shard_map(
    lambda x, ct, *n: jax.linear_transpose(lambda y: lax.ragged_all_to_all(x, y, *n, axis_name="d"), x)(ct)[0],
    mesh=mesh, in_specs=P("d"), out_specs=P("d"),
)  # fmt: skip
result = jax.jit(gradient)(jnp.ones(6), jnp.ones(6), *sizes).tolist()
sys.exit(f"defect: the gradient is {result}" if result != [0, 0, 1] * 2 else 0)
