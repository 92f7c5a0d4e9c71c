"""XLA aborts while it compiles a reduce_window of an empty array whose result, of padding, an axis shards."""

import subprocess
import sys

PROGRAM = """
import jax
import numpy as np
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Auto,) * 1)
x = jax.device_put(np.zeros(0, np.float32), jax.NamedSharding(mesh, P()))
f = lambda x: lax.reduce_window(x, -np.inf, lax.max, (1,), (1,), [(1, 1)])
jax.jit(f, out_shardings=jax.NamedSharding(mesh, P("a")))(x)
"""
done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
print(f"defect: it ends by signal {-done.returncode}" if done.returncode < 0 else "fixed")
sys.exit(done.returncode < 0)
