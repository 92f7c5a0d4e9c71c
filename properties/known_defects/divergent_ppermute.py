"""XLA:CPU: a ppermute over one axis, under a predicate that differs only along another, never ends."""

import os
import subprocess
import sys

if len(sys.argv) == 1:
    after = "--xla_cpu_collective_call_{}_timeout_seconds=3"
    env = {**os.environ, "XLA_FLAGS": after.format("warn_stuck") + " " + after.format("terminate")}
    child = subprocess.run([sys.executable, __file__, "run"], env=env, capture_output=True)
    hangs = child.returncode < 0 and b"Termination timeout for" in child.stderr
    print("defect: it does not end" if hangs else f"unclear: {child.stderr!r}" if child.returncode else "fixed")
    sys.exit(1 if hangs else 2 * bool(child.returncode))

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((2, 2), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
f = lambda x: lax.cond(lax.axis_index("dp") == 0, lambda x: lax.ppermute(x, "tp", [(0, 1), (1, 0)]), lambda x: x, x)
jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P(("dp", "tp")), out_specs=P(("dp", "tp"))))(jnp.arange(4.0)).tolist()
