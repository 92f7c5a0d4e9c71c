"""vmap of a cond whose predicate is mapped and varies raises if a branch casts an operand to vary."""

import sys

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
program = jax.jit(
    jax.shard_map(
        lambda x, ids: jax.vmap(lambda i: lax.cond(i == lax.axis_index("d"), lambda: x[0] + i, lambda: x[0]))(ids),
        mesh=jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,)),
        in_specs=(P("d"), P()),
        out_specs=P("d"),
    )
)
try:
    result = program(jnp.arange(2), jnp.arange(3)).tolist()
    problem = "" if result == [0, 0, 0, 1, 2, 1] else f"{result}"
except ValueError as error:
    problem = f"ValueError: {error}"
sys.exit(f"defect: {problem}" if problem else 0)
