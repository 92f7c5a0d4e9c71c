"""Right forms of what every shard computes by itself."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.properties.mutants.right.catalogue import right


@right("shard_mean")
def shard_mean_in_a_loop(x: Array) -> Array:
    """Adds the rows up one by one, in float32."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    start = jnp.zeros_like(x[0], wide)
    total = lax.scan(lambda held, row: (held + row.astype(wide), None), start, x)[0]
    return (total / x.shape[0]).astype(x.dtype)[None]


@right("shard_roll")
def shard_roll_by_index(x: Array, *, shift: int) -> Array:
    """Reads every row from where it comes from."""
    sources = (jnp.arange(x.shape[0]) - shift) % x.shape[0]
    return jax.vmap(lambda source, row: lax.dynamic_index_in_dim(x, source, keepdims=False) - row)(sources, x)
