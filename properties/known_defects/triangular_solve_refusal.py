"""On explicit axes triangular_solve raises AttributeError, no type error, where one axis shards rows and columns."""

import sys

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Explicit,) * 1)
rows = jax.device_put(jnp.eye(2), jax.NamedSharding(mesh, P("a")))
columns = jax.device_put(jnp.eye(2), jax.NamedSharding(mesh, P(None, "a")))
found = ""
try:
    lax.linalg.triangular_solve(rows, columns, left_side=True)
except AttributeError as error:
    found = f"AttributeError: {error}"
except Exception:  # a sharding type error, which has no public name, is an answer
    pass
print(f"defect: {found}" if found else "fixed")
sys.exit(bool(found))
