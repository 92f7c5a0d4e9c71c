"""random.gamma and random.beta raise where a parameter varies and the key does not."""

import sys

import jax
import jax.numpy as jnp
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
key, wrong = jax.random.key(0), []
for name in ("gamma", "beta", "truncated_normal"):
    drawn = lambda x, name=name: getattr(jax.random, name)(key, x, *[2 * x] * (name != "gamma"))
    try:
        jax.eval_shape(jax.shard_map(drawn, mesh=mesh, in_specs=P("x"), out_specs=P("x")), jnp.ones(2))
    except TypeError as error:
        wrong += [name] * ("requires all arguments to have matching type" in str(error))
sys.exit(f"defect: {' and '.join(wrong)} of {('gamma', 'beta', 'truncated_normal')} raise" if wrong else 0)
