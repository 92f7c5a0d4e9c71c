"""exp2(13) is 8192, which bfloat16 holds exactly; XLA:CPU computes 8096, one percent off."""

import sys

import jax
import jax.numpy as jnp

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
got = float(jax.lax.exp2(jnp.bfloat16(13)))
print("fixed" if got == 8192 else f"defect: exp2(13) = {got} in bfloat16")
sys.exit(0 if got == 8192 else 1)
