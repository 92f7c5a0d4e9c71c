"""device_put to other devices waits for its operand, on the host, unless they are to hold the same parts of it."""

import sys
import threading

import jax
import jax.numpy as jnp
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
given = threading.Event()
here, there = (jax.sharding.Mesh(jax.devices()[i : i + 2], ("d",)) for i in (0, 2))

later = lambda x: jax.pure_callback(lambda x: x if given.wait(3) else 0 * x, x, x)
columns = jax.jit(jax.shard_map(later, mesh=here, in_specs=P(None, "d"), out_specs=P(None, "d")))(jnp.ones((2, 2)))
rows = jax.device_put(columns, jax.NamedSharding(there, P("d", None)))
given.set()  # device_put has returned: from here on the operand may be computed

if rows.tolist() != [[1, 1], [1, 1]]:
    sys.exit("defect: device_put waited for its operand, which it need not")
