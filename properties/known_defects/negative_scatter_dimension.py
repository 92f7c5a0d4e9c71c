"""psum_scatter and all_to_all accept negative dimensions while tracing and fail while lowering."""
# seen on JAX 0.10.2

import subprocess
import sys

import jax
from jax import P, lax

COLLECTIVES = {
    "psum_scatter": lambda x: lax.psum_scatter(x, "d", scatter_dimension=-1, tiled=True),
    "all_to_all": lambda x: lax.all_to_all(x, "d", split_axis=-1, concat_axis=-2, tiled=True),
}
if len(sys.argv) == 2:  # a process of its own: some shapes crash it
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    f = jax.shard_map(COLLECTIVES[sys.argv[1]], mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    sys.exit(jax.jit(f)(jax.numpy.ones((4, 4))) is None)
ended = [subprocess.run([sys.executable, __file__, name], capture_output=True) for name in COLLECTIVES]
fail = [child.returncode < 0 or b"verifier errors" in child.stderr for child in ended]
unclear = [child.stderr for child, fails in zip(ended, fail, strict=True) if child.returncode and not fails]
verdict = f"unclear: {unclear or fail}" if unclear or len(set(fail)) > 1 else "defect: both fail to lower"
print(verdict if unclear or any(fail) else "fixed")
sys.exit(2 if verdict.startswith("unclear") else fail[0])
