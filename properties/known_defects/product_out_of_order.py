"""A product contracted over one axis, and sharded over that and, out of mesh order, two others, has rows that swap."""

import sys

import jax
import numpy as np
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
mesh = jax.make_mesh((2, 2, 2), ("a", "b", "c"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
x, w = np.arange(8.0).reshape(4, 2), np.arange(8.0).reshape(2, 4)
held = (jax.device_put(y, jax.NamedSharding(mesh, s)) for y, s in ((x, P(None, "c")), (w, P("c"))))
wanted = jax.NamedSharding(mesh, P(("b", "a"), "c"))  # with ("a", "b") it is right; explicit axes make no difference
y = np.asarray(jax.jit(lambda x, w: lax.with_sharding_constraint(x @ w, wanted))(*held))
wrong = bool((y != x @ w).any())
print(f"defect: {y[:, 0]}, expected {(x @ w)[:, 0]}" if wrong else "fixed")
sys.exit(wrong)
