"""XLA aborts where an axis goes to another dimension, in front of one of a different size, or away from it."""
# seen on JAX 0.11.2, 0.12.0.1

import subprocess
import sys

PROGRAM = """
import jax
import jax.numpy as jnp
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 6)
mesh = jax.make_mesh((2, 3), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
held, wanted = (jax.NamedSharding(mesh, spec) for spec in (P{}, P{}))
x = jax.device_put(jnp.zeros((3, 6)), held)
jax.jit(lambda x: x, out_shardings=wanted)(x)
"""
separate, behind = ("b", "a"), (None, ("b", "a"))
ways = {"in front": (separate, behind), "away": (behind, separate)}
runs = {way: subprocess.run([sys.executable, "-c", PROGRAM.format(*ends)]).returncode for way, ends in ways.items()}
wrong = [f"{way} it ends by signal {-code}" for way, code in runs.items() if code < 0]
sys.exit(f"defect: {', '.join(wrong)}" if wrong else 0)
