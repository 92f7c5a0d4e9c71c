"""vmap of a cond whose predicate is mapped and varies raises if a branch casts an operand to vary."""
# fails with: ValueError: pvary is a invariant->variant collective

import jax
import jax.numpy as jnp
from jax import P, lax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
program = jax.jit(
    jax.shard_map(
        lambda x, ids: jax.vmap(lambda i: lax.cond(i == lax.axis_index("d"), lambda: x[0] + i, lambda: x[0]))(ids),
        mesh=jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,)),
        in_specs=(P("d"), P()),
        out_specs=P("d"),
    )
)
result = program(jnp.arange(2), jnp.arange(3)).tolist()
assert result == [0, 0, 0, 1, 2, 1]
