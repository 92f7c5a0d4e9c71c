"""XLA aborts where an axis of one dimension goes to another in front of an axis of a different size that is there."""

import subprocess
import sys

PROGRAM = """
import jax
import jax.numpy as jnp
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 6)
mesh = jax.make_mesh((2, 3), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
held, wanted = (jax.NamedSharding(mesh, spec) for spec in (P("b", "a"), P(None, ("b", "a"))))
x = jax.device_put(jnp.zeros((3, 6)), held)
jax.jit(lambda x: x, out_shardings=wanted)(x)
"""
run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
wrong = run.returncode < 0
print(f"defect: it ends by signal {-run.returncode}" if wrong else "fixed")
sys.exit(wrong)
