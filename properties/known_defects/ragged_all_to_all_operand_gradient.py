"""The gradient of ragged_all_to_all by `operand` keeps one cotangent of a row that was sent several times."""

import sys

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))


gradient = jax.shard_map(
    lambda x, ct, *n: jax.linear_transpose(lambda y: lax.ragged_all_to_all(y, x, *n, axis_name="d"), x)(ct)[0],
    mesh=mesh, in_specs=P("d"), out_specs=P("d"),
)  # fmt: skip
body = jax.make_jaxpr(gradient)(jnp.ones(2), jnp.ones(2), *[jnp.zeros(4, int)] * 4).eqns[0].params["jaxpr"]
last = next(e.primitive.name for e in body.eqns if body.outvars[0] in e.outvars)
sys.exit(f"defect: the gradient is what {last} wrote into zeros" if last == "ragged_all_to_all" else 0)
