"""The gradient in the kernel of a strided and padded convolution is wrong where four devices share the rows."""

import sys
from functools import partial

import jax
import numpy as np
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((4,), ("a",), axis_types=(jax.sharding.AxisType.Auto,))
x, kernel = np.arange(8.0, dtype="float32").reshape(1, 8, 1), np.ones((1, 1, 1), "float32")
# it is wrong as well with a stride of two and padding at the end alone, and with a kernel of two rows
convolve = partial(lax.conv_general_dilated, window_strides=(4,), padding=((1, 1),))
numbers = lax.conv_dimension_numbers(x.shape, kernel.shape, ("NWC", "WIO", "NWC"))
gradient = jax.jit(jax.grad(lambda kernel, x: convolve(x, kernel, dimension_numbers=numbers).sum()))
found = gradient(kernel, jax.device_put(x, jax.NamedSharding(mesh, P(None, "a"))))
expected = x[0, 3::4].sum()
sys.exit(f"defect: {found.item()}, expected {expected}" if found.item() != expected else 0)
