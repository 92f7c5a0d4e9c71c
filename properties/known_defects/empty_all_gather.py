"""A tiled all_gather or psum_scatter along an empty dimension fails in the verifier while lowering."""

import sys

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

problem = ""
for collective in (lax.all_gather, lax.psum_scatter):
    f = jax.shard_map(lambda x, c=collective: c(x, "d", tiled=True), mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    try:
        jax.jit(f)(jnp.zeros(0))
    except ValueError as error:
        problem += f"{collective.__name__}: {str(error).splitlines()[0]} "
sys.exit(f"defect: {problem}" if problem else 0)
