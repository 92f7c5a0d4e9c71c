"""XLA:CPU: all_gather of int2 returns garbage, or crashes on larger blocks."""

import subprocess
import sys

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)

if sys.argv[1:] == ["child"]:
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    gather = jax.shard_map(lambda x: lax.all_gather(x, "d", tiled=True), mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    x = jnp.array([1, 0, -1, -2])
    results = [jax.jit(gather)(x.astype(jnp.int2)).astype(int).tolist() for _ in range(50)]
    sys.exit(3 * any(result != [*x.tolist(), *x.tolist()] for result in results))  # now and then it is right
child = subprocess.run([sys.executable, __file__, "child"], capture_output=True)
wrong = child.returncode == 3 or child.returncode < 0
print("defect: wrong values, or a crash" if wrong else f"unclear: {child.stderr!r}" if child.returncode else "fixed")
sys.exit(1 if wrong else 2 * bool(child.returncode))
