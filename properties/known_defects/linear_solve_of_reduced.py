"""A linear solve of an operand that is reduced over an axis raises, as its matrix is transposed."""
# fails with: ValueError: Expected cotangent type

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Explicit,))
half = lambda matrix, b: b / 2
solve = lambda b: lax.custom_linear_solve(lambda x: 2 * x, b, solve=half, transpose_solve=half)
b = jnp.ones(4)
with jax.set_mesh(mesh):
    jax.jit(solve)(jax.device_put(b, jax.NamedSharding(mesh, P(reduced={"a"}))))
