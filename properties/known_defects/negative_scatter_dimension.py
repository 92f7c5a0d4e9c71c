"""psum_scatter and all_to_all trace with negative dimensions, so they must run; instead their lowering fails."""

import subprocess
import sys

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)

if sys.argv[1:] == ["child"]:  # a process of its own: some shapes crash it
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    for collective in (
        lambda x: lax.psum_scatter(x, "d", scatter_dimension=-1, tiled=True),
        lambda x: lax.all_to_all(x, "d", split_axis=-1, concat_axis=-2, tiled=True),
    ):
        jax.jit(jax.shard_map(collective, mesh=mesh, in_specs=P("d"), out_specs=P("d")))(jnp.ones((4, 4)))
    sys.exit()
child = subprocess.run([sys.executable, __file__, "child"], stderr=subprocess.DEVNULL)
print(f"defect: the process ended with {child.returncode}" if child.returncode else "fixed")
sys.exit(child.returncode != 0)
