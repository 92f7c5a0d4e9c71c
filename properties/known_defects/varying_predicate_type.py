"""What a varying predicate or trip count chooses is typed invariant: cond, switch, while_loop, fori_loop."""

import sys

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
PROGRAMS = {
    "cond": lambda: lax.cond(lax.axis_index("d") == 0, lambda: 1.0, lambda: 2.0),
    "switch": lambda: lax.switch(lax.axis_index("d"), [lambda i=i: jnp.float32(i) for i in range(4)]),
    "while_loop": lambda: lax.while_loop(lambda c: c < lax.axis_index("d"), lambda c: c + 1, 0),
    "fori_loop": lambda: lax.fori_loop(0, lax.axis_index("d"), lambda i, c: c + 1.0, 0.0),
}
unsound = []
for name, program in PROGRAMS.items():
    result = jax.jit(jax.shard_map(program, mesh=mesh, in_specs=(), out_specs=P()))()
    unsound += [name] if len({float(shard.data) for shard in result.addressable_shards}) > 1 else []
sys.exit(f"defect: typed invariant, and different on every device: {', '.join(unsound)}" if unsound else 0)
