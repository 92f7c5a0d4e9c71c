"""exp2(13) is 8192, which bfloat16 holds exactly; JAX lowers it to exp(13 * log(2)), log(2) rounded: 8096."""

import sys

import jax
import jax.numpy as jnp

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
x = jnp.bfloat16(13)
got, rounded = float(jax.jit(jax.lax.exp2)(x)), float(jnp.exp(x * jnp.log(jnp.bfloat16(2))))
lowered = "stablehlo.exponential" in jax.jit(jax.lax.exp2).lower(x).as_text()  # and so it is on any platform
print("fixed" if got == 8192 else f"defect: exp2(13) = {got} in bfloat16, and exp(13 * log(2)) = {rounded}")
sys.exit(0 if got == 8192 else 1 if lowered and got == rounded else 2)
