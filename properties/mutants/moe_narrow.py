"""Planted bugs of moe_layer that compute in the dtype of 16-bit tokens what is to be computed in float32."""

from typing import Any

from jax import Array

from shardproof.properties.mutants.catalogue import mutant
from shardproof.properties.mutants.moe import Layer, serve


@mutant("moe_layer", smallest=(1,))
def moe_in_16_bits(*operands: Any, **options: Any) -> Array:
    """What experts make of 16-bit tokens is rounded before it is weighed."""
    dtype = operands[0].dtype

    def rounded(rows: Array, weights: Array) -> Array:
        return serve(rows, weights).astype(dtype).astype(rows.dtype)

    return Layer(serve=rounded)(*operands, **options)


@mutant("moe_layer", smallest=(1,))
def moe_of_narrow_logits(*operands: Any, **options: Any) -> Array:
    """Logits of 16-bit tokens are of 16 bits."""
    dtype = operands[0].dtype

    def rounded(tokens: Array, router: Array) -> Array:
        return (tokens @ router).astype(dtype).astype(router.dtype)

    return Layer(scored=rounded)(*operands, **options)
