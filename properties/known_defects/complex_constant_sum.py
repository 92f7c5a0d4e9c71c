"""XLA:CPU aborts while it compiles the psum or psum_scatter of a complex constant."""

import signal
import subprocess
import sys

if len(sys.argv) == 1:
    child = subprocess.run([sys.executable, __file__, "run"], capture_output=True)
    aborts = child.returncode == -signal.SIGABRT and b"Check failed: buffer != nullptr" in child.stderr
    print("defect: the compiler aborts" if aborts else f"unclear: {child.stderr!r}" if child.returncode else "fixed")
    sys.exit(1 if aborts else 2 * bool(child.returncode))

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
add_ones = lambda x: x + lax.psum(jnp.ones_like(x), "d")
program = jax.shard_map(add_ones, mesh=mesh, in_specs=P(), out_specs=P())
print(jax.jit(program)(jnp.ones(2, complex)))  # of float32, it is compiled
