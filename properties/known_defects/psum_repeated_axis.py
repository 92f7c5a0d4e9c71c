"""psum over a tuple that names an axis twice is an error to raise; instead the compiler aborts the process."""

import contextlib
import subprocess
import sys

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)

if sys.argv[1:] == ["child"]:
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    f = jax.shard_map(lambda x: lax.psum(x, ("d", "d")), mesh=mesh, in_specs=P("d"), out_specs=P())
    with contextlib.suppress(ValueError):
        jax.jit(f)(jnp.ones(2))
    sys.exit()
child = subprocess.run([sys.executable, __file__, "child"], stderr=subprocess.DEVNULL)
print(f"defect: the process ended with {child.returncode}" if child.returncode else "fixed")
sys.exit(child.returncode != 0)
