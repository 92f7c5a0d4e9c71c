"""The JVP of a maximum over windows is -inf for a window of padding alone, where an axis shards the operand."""
# seen on JAX 0.10.2

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Auto,) * 1)
pool = lambda x: lax.reduce_window(x, jnp.array(-jnp.inf), lax.max, (1,), (1,), [(0, 1)])
x = jax.device_put(np.arange(2, dtype=np.float32), jax.NamedSharding(mesh, P("a")))
y = np.asarray(jax.jit(lambda x: jax.jvp(pool, (x,), (x,))[1])(x))
wrong = not np.isfinite(y).all()
print(f"defect: {y}, expected [0. 1. 0.]" if wrong else "fixed")
sys.exit(wrong)
