"""XLA raises INTERNAL for a cond whose branches constrain their results to different layouts."""
# fails with: Inconsistent conditional sharding

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Auto,) * 1)
x = jax.device_put(jnp.ones((2, 2)), jax.NamedSharding(mesh, P("a")))
rows, columns = (jax.NamedSharding(mesh, P(*spec)) for spec in (("a",), (None, "a")))
of_rows = lambda x: lax.with_sharding_constraint(x, rows)
of_columns = lambda x: lax.with_sharding_constraint(x, columns)
jax.jit(lambda x: lax.cond(x.sum() > 0, of_rows, of_columns, x))(x)
