"""On explicit axes a split or merge fails an assertion if an axis of one device is last and parts are one row."""

import sys

import jax
import jax.numpy as jnp
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((2, 2, 1), ("a", "b", "c"), axis_types=(jax.sharding.AxisType.Explicit,) * 3)
wrong = []
for shape, spec, new in (((4,), P(("a", "b", "c")), (2, 2)), ((2, 2), P("a", ("b", "c")), (4,))):
    x = jax.device_put(jnp.zeros(shape), jax.NamedSharding(mesh, spec))
    try:
        x.reshape(new)
    except AssertionError:
        wrong.append(f"{jax.typeof(x)} to {new}")
sys.exit(f"defect: AssertionError for {'; '.join(wrong)}" if wrong else 0)
