"""The router of a mixture of experts: the experts that each token chooses, and their gates.

Logits are products of tokens and the router's columns, carried in float32 or wider at the highest precision, since a
choice is no matter of rounding. A NaN logit counts as minus infinity. Its cotangent is zero, which NaN in the product
makes NaN: a NaN token is in the gradient of the router, whatever the dispatch. Equal logits have equal
gates, infinite ones as well: plus infinity leaves nothing for what is finite.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from shardproof.impl.arguments import check_floating, check_rank, is_integer, refuse
from shardproof.impl.collectives import Block, accumulator


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Routing:
    """The choices of T tokens."""

    experts: Int[Array, "t k"]  # `[T, k]`, the best one first; int32
    gates: Float[Array, "t k"]  # `[T, k]`, their weights; float32 or wider
    logits: Float[Array, "t e"]  # `[T, E]`, NaN as minus infinity; float32 or wider


def route(
    tokens: Block, router_weights: Block, top_k: int, *, over: str = "chosen", function: str = "route"
) -> Routing:
    """`tokens [T, D]`, `router_weights [D, E]`: the k experts of the highest logits, ties to the lowest number.

    Arguments:
        tokens: floating-point blocks of this participant's tokens.
        router_weights: floating-point, with a column for each of all experts.
        top_k: the number of experts that a token chooses, in [1, E].
        over: gates are the softmax over the `"chosen"` logits, or over `"all"`; that, divided by the sum of the chosen
            ones, is the former.
        function: the name in messages.
    """
    check_operands(function, tokens, router_weights)
    experts = router_weights.shape[1]
    if not is_integer(top_k) or not 1 <= top_k <= experts:
        refuse(function, "top_k", top_k, f"an integer in [1, {experts}], the number of experts")
    if over not in ("chosen", "all"):
        refuse(function, "over", over, "one of chosen, all")
    wide = accumulator(tokens, router_weights)
    # where tokens and router are cast first, their cotangents are added up in the accumulator's dtype
    products = jnp.matmul(tokens.astype(wide), router_weights.astype(wide), precision=lax.Precision.HIGHEST)
    logits = jnp.where(jnp.isnan(products), -jnp.inf, products)
    known = lax.stop_gradient(logits)
    # the two zeros are equal, which XLA's order of floats does not have
    chosen = lax.top_k(jnp.where(known == 0, 0, known), top_k)[1].astype(jnp.int32)
    weighed = logits if over == "chosen" else softmax(logits)
    best = jnp.take_along_axis(weighed, chosen, axis=1, mode="promise_in_bounds")
    return Routing(chosen, softmax(best, ordered=True) if over == "chosen" else best, logits)


def check_operands(function: str, tokens: Block, router_weights: Block) -> None:
    """Raises ValueError unless `tokens [T, D]`, `router_weights [D, E]` are floating-point matrices that match."""
    check_rank(function, "tokens", tokens, 2)
    check_rank(function, "router_weights", router_weights, 2)
    check_floating(function, tokens=tokens, router_weights=router_weights)
    if router_weights.shape[0] != tokens.shape[1]:
        refuse(function, "router_weights", str(jax.typeof(router_weights)), f"{tokens.shape[1]} rows, as tokens have")


def softmax(logits: Float[Array, "t n"], *, ordered: bool = False) -> Float[Array, "t n"]:
    """`exp(l) / sum(exp(l))` along the last dimension, of which the largest weigh 1 each, even if they are infinite.

    The sum is that of sorted powers: equal logits in another order have the same gates, to the last bit. They need no
    sorting if logits come in descending order (`ordered`).
    """
    most = lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    finite = jnp.isfinite(logits) & jnp.isfinite(most)
    below = jnp.where(finite, jnp.where(finite, logits, 0) - jnp.where(finite, most, 0), -jnp.inf)
    powers = jnp.exp(jnp.where(logits == most, jnp.where(finite, below, 0), below))
    terms = powers if ordered else jnp.sort(powers, axis=-1)
    return powers / jnp.sum(terms, axis=-1, keepdims=True)
