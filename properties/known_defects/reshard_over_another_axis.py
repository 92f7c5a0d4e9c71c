"""XLA sends up to 1.5 times what a gather takes where axes of two give way to one, in another dimension."""

import sys

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
x = jax.device_put(jnp.zeros((8, 8)), jax.NamedSharding(mesh, P("a")))
wanted = jax.NamedSharding(mesh, P(None, "b"))
program = str(jax.jit(lambda x: lax.with_sharding_constraint(x, wanted)).lower(x).compile().as_text())
# an all_gather would bring 4 rows of 8; the permute brings as many, after an all_to_all that brings 2 more
more = all(f" {sent}(" in program for sent in ("all-to-all", "collective-permute"))
sys.exit("defect: an all_to_all and a permute" if more else 0)
