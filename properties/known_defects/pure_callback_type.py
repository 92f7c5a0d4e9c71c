"""The result of a pure_callback on a varying operand is typed invariant."""

import sys

import jax
import jax.numpy as jnp
from jax import P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
same = lambda x: jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
result = jax.jit(jax.shard_map(same, mesh=mesh, in_specs=P("d"), out_specs=P()))(jnp.arange(4.0))
held = {float(shard.data[0]) for shard in result.addressable_shards}
sys.exit(f"defect: replicated over d, and the devices hold {sorted(held)}" if len(held) > 1 else 0)
