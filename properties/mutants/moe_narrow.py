"""Planted bugs of moe_layer that are right for few, short or wide numbers alone."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from shardproof.properties.mutants.catalogue import mutant
from shardproof.properties.mutants.moe import Layer, numbers, serve


@mutant("moe_layer", smallest=(1,))
def moe_in_tiles_of_eight(*operands: Any, **options: Any) -> Array:
    """Of more than eight features those behind the last whole tile of eight are left out."""

    def in_tiles(rows: Array, weights: Array) -> Array:
        features = rows.shape[-1]
        kept = jnp.arange(features) < max(features // 8, features <= 8) * 8
        return serve(jnp.where(kept, rows, 0), weights)

    return Layer(serve=in_tiles)(*operands, **options)


@mutant("moe_layer", smallest=(1,), form="user")
def moe_of_expert_numbers_in_16_bits(*operands: Any, **options: Any) -> Array:
    """Compares the experts' numbers in bfloat16, in which there are no odd ones above 256."""

    def rounded(index: Array, held: int, participants: int) -> Array:
        return numbers(index, held, participants).astype(jnp.bfloat16).astype(jnp.int32)

    return Layer(numbers=rounded)(*operands, **options)
