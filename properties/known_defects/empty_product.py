"""A shard_map of several operands, all of them empty, that has a result fails while XLA compiles it."""

import sys

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
product = jax.shard_map(lambda a, b: a @ b, mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d"))
squares = jax.shard_map(lambda x: lax.psum(jnp.sum(x * x), "d"), mesh=mesh, in_specs=P("d"), out_specs=P())

problem = ""
for f in (product, lambda x, y: jax.jvp(squares, (x,), (y.T,))[1]):
    try:
        problem += "" if (jax.jit(f)(jnp.ones((2, 0)), jnp.ones((0, 2))) == 0).all() else "not zero "
    except jax.errors.JaxRuntimeError as error:
        problem += f"{str(error).splitlines()[0]} "
sys.exit(f"defect: {problem}" if problem else 0)
