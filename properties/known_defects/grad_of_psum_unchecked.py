"""With check_vma=False, the gradient taken inside shard_map of a psum is silently wrong."""

import sys

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

gradient = jax.grad(lambda w, x: lax.psum(jnp.sum(w * x), "d"))
f = jax.shard_map(gradient, mesh=mesh, in_specs=(P(), P("d")), out_specs=P(), check_vma=False)
result = jax.jit(f)(1.0, jnp.array([1.0, 2.0]))
sys.exit(f"defect: the gradient is {result}, and not 3" if result != 3 else 0)
