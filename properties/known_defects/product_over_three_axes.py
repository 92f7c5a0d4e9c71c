"""A matmul swaps rows of its result if one axis shards the sum and the columns, and two more shard the rows."""

import sys

import jax
import numpy as np
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
mesh = jax.make_mesh((2, 2, 2), ("a", "b", "c"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
x, w = np.arange(8.0).reshape(4, 2), np.arange(8.0).reshape(2, 4)
# explicit axes make no difference; with w over "c" alone, the first is right
for of_x, of_w, of_y in (
    (P("a", "c"), P("c", "b"), P(("a", "b"), "c")),
    (P(None, "c"), P("c"), P(("b", "a"), "c")),
):
    held = (jax.device_put(y, jax.NamedSharding(mesh, s)) for y, s in ((x, of_x), (w, of_w)))
    wanted = jax.NamedSharding(mesh, of_y)
    y = np.asarray(jax.jit(lambda x, w, wanted=wanted: lax.with_sharding_constraint(x @ w, wanted))(*held))
    if (y != x @ w).any():
        sys.exit(f"defect: {y[:, 0]}, expected {(x @ w)[:, 0]}")
