"""XLA:CPU: all_to_all of int2 aborts the process."""

import contextlib
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)

if sys.argv[1:] == ["child"]:
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    f = jax.shard_map(lambda x: lax.all_to_all(x, "d", 0, 0, tiled=True), mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        jax.jit(f)(jnp.zeros(16, jnp.int2))
    sys.exit()
child = subprocess.run([sys.executable, __file__, "child"], capture_output=True)
aborts = child.returncode == -signal.SIGABRT and b"Check failed: bit_offset != nullptr" in child.stderr
print("defect: the compiler aborts" if aborts else f"unclear: {child.stderr!r}" if child.returncode else "fixed")
sys.exit(1 if aborts else 2 * bool(child.returncode))
