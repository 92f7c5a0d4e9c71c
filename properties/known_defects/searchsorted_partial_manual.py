"""searchsorted in an array that varies fails an assertion beside an axis that is not manual."""

import sys

import jax
import jax.numpy as jnp
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
found = {}
for method in ("scan", "sort"):
    search = lambda x, method=method: jnp.searchsorted(x, x, method=method)
    mapped = jax.shard_map(search, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    try:
        found[method] = str(jax.jit(mapped)(jnp.arange(4.0)))
    except AssertionError as error:
        found[method] = f"AssertionError: {error}"
wrong = found["scan"].startswith("AssertionError") and found["sort"] == "[0 1 0 1]"
sys.exit(f"defect: {found}" if wrong else 0)
