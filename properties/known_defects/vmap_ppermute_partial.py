"""ppermute over a vmapped axis fails an assertion unless every participant sends, and zero-fills nothing."""
# fails with: AssertionError: Permutation doesn't match the axis size

import jax
import jax.numpy as jnp
from jax import lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)

f = jax.vmap(lambda x: lax.ppermute(x, "v", [(0, 1)]), axis_name="v")
assert jax.jit(f)(jnp.ones(2)).tolist() == [0, 1]
