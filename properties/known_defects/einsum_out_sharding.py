"""jnp.einsum ignores out_sharding where it has one operand and nothing to add up, on explicit axes."""

import sys

import jax
import jax.numpy as jnp
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
jax.set_mesh(jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Explicit,)))
ways = ("ij->ji", "ij->ij")
found = {way: jax.typeof(jnp.einsum(way, jnp.ones((4, 4)), out_sharding=P("a"))) for way in ways}
wrong = {way: str(type) for way, type in found.items() if type.sharding.spec[0] != "a"}
sys.exit(f"defect: {wrong}, expected float32[4@a,4]" if wrong else 0)
