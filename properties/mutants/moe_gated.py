"""Planted bugs of a moe_layer whose gated experts make other hidden units."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from shardproof.properties.mutants.axes import AxisName
from shardproof.properties.mutants.catalogue import mutant
from shardproof.properties.mutants.moe import Layer, typed


def gated(
    tokens: Array,
    router_weights: Array,
    expert_weights: Array | Sequence[Array],
    axis_name: AxisName,
    *,
    hidden: Callable[[Array, Array], Array] = lambda u, v: jax.nn.silu(u) * v,
    **options: Any,
) -> Array:
    """A right layer; a bug is one whose gated experts have other hidden units.

    Arguments:
        tokens: `[T_Y, D]`.
        router_weights: `[D, E]`.
        expert_weights: `[E_Y, D, F]`; or of gated experts `[E_Y, D, H]` twice, and `[E_Y, H, F]`.
        axis_name: the axes.
        hidden: of a token's products with the first matrix, and with the second.
        **options: those of the contract.
    """
    if isinstance(expert_weights, Array):
        return Layer()(tokens, router_weights, expert_weights, axis_name, **options)
    gate, up, down = expert_weights

    def serve(rows: Array, last: Array) -> Array:
        u, v = (jnp.einsum("nd,edh->neh", rows, w) for w in typed(axis_name, gate, up))
        return jnp.einsum("neh,ehf->nef", hidden(u, v), last)

    return Layer(serve=serve)(tokens, router_weights, down, axis_name, **options)


@mutant("moe_layer", smallest=(1,), claims=("gated_experts",))
def gated_moe_without_silu(*operands: Any, **options: Any) -> Array:
    """The gate is the product itself: experts are bilinear."""
    return gated(*operands, hidden=lambda u, v: u * v, **options)
