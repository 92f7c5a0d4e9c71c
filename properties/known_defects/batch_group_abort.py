"""XLA aborts while it compiles a convolution of batch groups whose result is sharded along its batch and features."""

import subprocess
import sys

PROGRAM = """
import jax
import numpy as np
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
x = jax.device_put(np.ones((4, 1, 4), np.float32), jax.NamedSharding(mesh, P("a")))
f = lambda x: lax.conv_general_dilated(x, np.ones((2, 1, 4), np.float32), (1,), "VALID", batch_group_count=2)
jax.jit(f, out_shardings=jax.NamedSharding(mesh, P("a", "b")))(x)
"""
done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
print(f"defect: it ends by signal {-done.returncode}" if done.returncode < 0 else "fixed")
sys.exit(done.returncode < 0)
