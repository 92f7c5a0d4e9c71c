"""pmax and pmin over an empty axis tuple raise where types are checked; psum and pmean do nothing."""
# seen on JAX 0.10.2
# fails with: ValueError: psum is a variant->invariant collective

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
over_nothing = {
    name: jax.shard_map(lambda x, f=f: f(x, ()), mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    for name, f in {"sum": lax.psum, "maximum": lax.pmax}.items()
}

assert over_nothing["sum"](jnp.arange(2.0)).tolist() == [0, 1]
assert over_nothing["maximum"](jnp.arange(2.0)).tolist() == [0, 1]
