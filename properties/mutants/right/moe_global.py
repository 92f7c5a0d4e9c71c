"""Right forms of global_moe_layer: of other dispatches, on other layouts, and without any."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from shardproof.impl.moe import GlobalMoeLayer
from shardproof.impl.moe.dispatch import all_gather, chunked
from shardproof.properties.mutants import moe
from shardproof.properties.mutants.right.catalogue import right


@right("global_moe_layer", whole=True)
def global_moe_on_whole_arrays(
    tokens: Array, router_weights: Array, expert_weights: Array, *, mesh: Any, data: Any, expert: Any, **options: Any
) -> Array:
    """Leaves everything to the compiler."""
    top_k, capacity, policy = options["top_k"], options["capacity"], options["policy"]
    rows, router, weights = (
        x.astype(jnp.promote_types(x.dtype, jnp.float32)) for x in (tokens, router_weights, expert_weights)
    )
    logits = moe.known(rows @ router)
    chosen = moe.choose(logits, top_k)
    gates = moe.weigh(logits, chosen)
    kept = moe.keep(moe.pairs_of(chosen, gates, len(weights), len(rows)), capacity, policy).reshape(chosen.shape)
    shares = jnp.sum(jnp.where(chosen[..., None] == jnp.arange(len(weights)), moe.count(gates, kept)[..., None], 0), 1)
    return jnp.einsum("ne,nef->nf", shares, moe.serve(rows, weights)).astype(tokens.dtype)


@right("global_moe_layer", whole=True)
def global_moe_in_chunks(*operands: Any, **options: Any) -> Array:
    """Tokens travel in chunks, until no participant has any left."""
    return GlobalMoeLayer("in_chunks", chunked.dispatched)(*operands, **options)


@right("global_moe_layer", whole=True)
def global_moe_of_gathered_tokens(*operands: Any, **options: Any) -> Array:
    """Gathers the tokens of each group of devices that share the experts."""
    return GlobalMoeLayer("gathered", all_gather.dispatched)(*operands, **options)
