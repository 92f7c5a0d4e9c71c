"""exp2 of a bfloat16 is lowered to exp of x times a rounded log(2), and is up to six percent off."""

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
