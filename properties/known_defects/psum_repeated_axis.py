"""psum, pmax and all_gather over a tuple that names an axis twice abort the process instead of raising."""
# seen on JAX 0.11.2, 0.12.0.1

import contextlib
import signal
import subprocess
import sys

import jax
from jax import P, lax

if len(sys.argv) == 2:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    f = lambda x: getattr(lax, sys.argv[1])(x, ("d", "d"))
    f = jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False)
    with contextlib.suppress(ValueError):
        jax.jit(f)(jax.numpy.ones(2))
    sys.exit()
names = ("psum", "pmax", "all_gather")
ended = [subprocess.run([sys.executable, __file__, name], stderr=subprocess.DEVNULL).returncode for name in names]
what = "defect" if set(ended) == {-signal.SIGABRT} else "unclear"
print(f"{what}: the processes of {names} ended with {ended}" if any(ended) else "fixed")
sys.exit(0 if not any(ended) else 1 if what == "defect" else 2)
