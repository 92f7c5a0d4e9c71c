"""XLA:CPU: compiling lax.reduce with a while_loop in its function aborts the process."""

import signal
import subprocess
import sys

if len(sys.argv) == 1:
    child = subprocess.run([sys.executable, __file__, "run"], capture_output=True)
    aborts = child.returncode == -signal.SIGABRT and b"Check failed: operand_maps.size() == 1" in child.stderr
    print("defect: the compiler aborts" if aborts else f"unclear: {child.stderr!r}" if child.returncode else "fixed")
    sys.exit(1 if aborts else 2 * bool(child.returncode))

import jax
import jax.numpy as jnp
from jax import lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
loop = lambda a, b: lax.while_loop(lambda c: c < b, lambda c: c + 2, a)
print(jax.jit(lambda x: lax.reduce(x, jnp.float32(0), loop, (1,)))(jnp.ones((4, 4))))
