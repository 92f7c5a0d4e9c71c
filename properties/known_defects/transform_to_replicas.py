"""XLA:CPU raises INTERNAL for a Fourier transform of a sharded array whose result has another layout."""
# fails with: INTERNAL: RET_CHECK failure

import jax
import jax.numpy as jnp
import numpy as np
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Auto,) * 1)
x = jax.device_put(np.ones((6, 2, 5), np.complex64), jax.NamedSharding(mesh, P(None, "a")))
jax.block_until_ready(jax.jit(lambda x: jnp.fft.fft(x), out_shardings=jax.NamedSharding(mesh, P()))(x))
