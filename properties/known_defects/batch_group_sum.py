"""XLA raises INTERNAL where two convolutions of batch groups are added whose batch two axes shard."""
# fails with: Expected instruction to have shape

from functools import partial

import jax
import numpy as np
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
x = jax.device_put(np.ones((4, 1, 4), np.float32), jax.NamedSharding(mesh, P(("a", "b"))))
w = jax.device_put(np.ones((2, 1, 1), np.float32), jax.NamedSharding(mesh, P()))
f = partial(lax.conv_general_dilated, window_strides=(1,), padding="VALID", batch_group_count=2)
jax.block_until_ready(jax.jit(lambda x, w: f(x, w) + f(x, 2 * w))(x, w))
