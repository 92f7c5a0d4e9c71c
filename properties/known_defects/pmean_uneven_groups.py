"""pmean over axis_index_groups of different sizes divides the sum of each by the size of the first."""

import sys

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

groups = [[0, 1, 2], [3]]
mean = jax.shard_map(
    lambda x: lax.pmean(x, "d", axis_index_groups=groups), mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False
)
result = jax.jit(mean)(jnp.array([1.0, 2.0, 3.0, 6.0])).tolist()
sys.exit(f"defect: the means are {result}" if result != [2, 2, 2, 6] else 0)
