"""XLA:CPU aborts while it compiles the psum_scatter, on one device, of a complex product over an empty dimension."""

import subprocess
import sys

if len(sys.argv) == 1:
    sound = subprocess.run([sys.executable, __file__, "run"], capture_output=True).returncode == 0
    print("fixed" if sound else "defect: the compiler aborts")
    sys.exit(not sound)

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
scatter = lambda a, b: lax.psum_scatter(a @ b.T, "d", scatter_dimension=1, tiled=True)
program = jax.shard_map(scatter, mesh=mesh, in_specs=(P(), P("d")), out_specs=P(None, "d"))
print(jax.jit(program)(jnp.ones((1, 0), complex), jnp.ones((1, 0), complex)))  # of float32, it is compiled
