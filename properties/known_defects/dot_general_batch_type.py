"""On explicit axes dot_general types a batch dimension by its left operand alone: an axis of the right is lost."""
# seen on JAX 0.10.2

import sys

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
whole, sharded = (jax.device_put(jnp.ones((2, 3)), jax.NamedSharding(mesh, spec)) for spec in (P(), P("d")))
types = []
for operands in ((sharded, whole), (whole, sharded)):
    try:
        types.append(str(jax.typeof(lax.dot_general(*operands, (((1,), (1,)), ((0,), (0,)))))))
    except Exception as error:  # a sharding type error, which has no public name
        types.append(type(error).__name__)
wrong = types[0] != types[1]
sys.exit(f"defect: {types[0]} and, the operands exchanged, {types[1]}" if wrong else 0)
