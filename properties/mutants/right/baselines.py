"""Right forms of matrix products in any layout."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from shardproof.impl import baselines
from shardproof.properties.mutants.right.catalogue import right


@right("two_matmuls", whole=True)
def two_matmuls_weights_first(x: Array, w_in: Array, w_out: Array, *, mesh: Any, **layouts: Any) -> Array:
    """Multiplies the weights with one another, on every device of its own `shard_map`."""
    wide = jnp.promote_types(x.dtype, jnp.float32)

    def product(x: Array, w_in: Array, w_out: Array) -> Array:
        weights = jnp.matmul(w_in, w_out, preferred_element_type=wide)
        return jnp.matmul(x.astype(wide), weights).astype(x.dtype)

    rows, _ = baselines.layout(layouts["rows"], ())
    of_rows = baselines.spec((rows, ()))
    whole = baselines.spec(((), ()))
    on_all: Any = jax.shard_map(product, mesh=mesh, in_specs=(of_rows, whole, whole), out_specs=of_rows)
    return on_all(x, w_in, w_out)
