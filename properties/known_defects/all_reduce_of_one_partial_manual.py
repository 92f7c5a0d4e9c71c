"""XLA cannot compile a psum or pmax over one device beside an axis left to it that shards the operand."""

import sys

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2, 1), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
x = jax.device_put(jnp.arange(2.0), jax.NamedSharding(mesh, P("dp")))

problem = ""
for reduce in (lax.psum, lax.pmax, lax.pmean):
    f = jax.shard_map(lambda x, r=reduce: r(x, "tp"), mesh=mesh, in_specs=P("tp"), out_specs=P(), axis_names={"tp"})
    try:
        assert jax.jit(f)(x).tolist() == [0, 1]
    except jax.errors.JaxRuntimeError as error:
        problem = str(error).splitlines()[0]
sys.exit(f"defect: {problem}" if problem else 0)
