"""ragged_all_to_all is typed as its `output` operand alone, so a varying result passes as invariant."""

import sys

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

offsets_and_sizes = [jnp.arange(2), jnp.ones(2, int)] * 2
exchange = jax.shard_map(
    lambda x: lax.ragged_all_to_all(x, jnp.zeros(2), *offsets_and_sizes, axis_name="d"),
    mesh=mesh, in_specs=P("d"), out_specs=P(),
)  # fmt: skip
try:
    jax.eval_shape(exchange, jnp.arange(4.0))
    accepted = True
except ValueError:
    accepted = False
sys.exit("defect: out_specs=P() is accepted for a varying result" if accepted else 0)
