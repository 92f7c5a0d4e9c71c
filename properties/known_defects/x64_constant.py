"""A NumPy constant keeps the dtype of its first trace while a program holds it: jit fails after enable_x64."""
# fails with: ValueError: Cannot lower jaxpr with verifier errors

import jax
import numpy as np

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
table = np.arange(3) / 7
with jax.enable_x64(True):
    wide = jax.make_jaxpr(lambda x: x * table)(np.ones(3))
jax.jit(lambda x: x * table)(np.ones(3, np.float32))
