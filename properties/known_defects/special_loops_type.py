"""expi and random.binomial raise where an operand varies: their loops begin with constants."""

import sys

import jax
import jax.numpy as jnp
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
binomial = lambda p: jax.random.binomial(jax.random.key(0), 5.0, p)
wrong = []
for name, function in (("expi", jax.scipy.special.expi), ("binomial", binomial)):
    try:
        jax.eval_shape(jax.shard_map(function, mesh=mesh, in_specs=P("x"), out_specs=P("x")), jnp.ones(2) / 2)
    except TypeError as error:
        wrong += [name] * str(error).startswith("while_loop body function carry input")
sys.exit(f"defect: types of loops differ in {' and '.join(wrong)}" if wrong else 0)
