"""The experts, each a matrix, or a gated MLP.

Weights are `[e, D, F]`, or three arrays of a gated MLP: gate `[e, D, H]`, up `[e, D, H]`, down `[e, H, F]`, of which an
expert makes `(silu(x W_gate) * (x W_up)) W_down` (Shazeer, GLU Variants Improve Transformer, 2020).
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from shardproof.impl.arguments import refuse_batches
from shardproof.impl.collectives import Block, cast_varying, varying
from shardproof.impl.moe.capacity import argsort, count_pairs

Weights: TypeAlias = list[Float[Array, "e _ _"]]
"""One array, or three."""


def _expert(rows: Block, weights: Sequence[Block], product: Callable[[Block, Block], Block]) -> Block:
    if len(weights) == 1:
        return product(rows, weights[0])
    gate, up, down = weights
    return product(jax.nn.silu(product(rows, gate)) * product(rows, up), down)


def in_buffers(rows: Float[Array, "e c d"], weights: Weights) -> Float[Array, "e c f"]:
    """`[e, C, D]` to `[e, C, F]`: each expert with its own buffer of C rows."""
    return _expert(rows, weights, lambda x, w: lax.dot_general(x, w, (((2,), (1,)), ((0,), (0,)))))


def in_turn(
    rows: Float[Array, "n d"], experts: Int[Array, "n k"], gates: Float[Array, "n k"], weights: Weights
) -> Float[Array, "n f"]:
    """`[N, D]` to `[N, F]`: one expert after the other computes on all rows, with zeros for those of other experts.

    The result of a row is the sum over its different experts, by their numbers among the e in `weights`, of gate times
    output; other numbers are no expert. Computes e times as many products as there are rows, and never has an array of
    rows by experts by features, nor in a derivative, where each expert's products are computed again.
    """

    @jax.checkpoint
    def one(rows: Block, experts: Block, gates: Block, number: Block, weights: Sequence[Block]) -> Block:
        chosen = experts == number
        gate = jnp.sum(jnp.where(chosen, gates, 0), axis=1)[:, None]
        own = jnp.any(chosen, axis=1)[:, None]
        # selected before anything is computed, so that no other row is in an expert's gradient, even if it is NaN
        result = _expert(jnp.where(own, rows, 0), weights, jnp.matmul)
        return jnp.where(own, result, 0) * gate

    def step(total: Block, expert: tuple[Block, Sequence[Block]]) -> tuple[Block, None]:
        return total + one(rows, experts, gates, *expert), None

    zeros = jnp.zeros((rows.shape[0], weights[-1].shape[2]), rows.dtype)
    total = cast_varying(zeros, varying(rows) | varying(experts) | varying(weights[0]))
    return lax.scan(step, total, (jnp.arange(weights[0].shape[0]), weights))[0]


def sorted_by_expert(rows: Float[Array, "n d"], experts: Int[Array, "n"], weights: Weights) -> Float[Array, "n f"]:
    """`[N, D]` to `[N, F]`: rows are sorted by their expert, and `jax.lax.ragged_dot` multiplies each group by its own.

    Numbers of experts are those among the e in `weights`; others are no expert, and give zeros. XLA:CPU expands it to a
    product with an array `[e, N, D]`. Under `jax.vmap`, which `ragged_dot` does not support, it raises
    NotImplementedError.
    """
    refuse_batches("sorted_by_expert", "rows", str(jax.typeof(rows)), "rows outside of jax.vmap", rows, experts)
    count = weights[0].shape[0]
    known = jnp.where((experts >= 0) & (experts < count), experts, count)
    order = argsort(known)
    grouped = jnp.where((known < count)[order][:, None], rows[order], 0)
    sizes = cast_varying(count_pairs(known, count), varying(grouped) | varying(weights[0]))
    result = _expert(grouped, weights, lambda x, w: lax.ragged_dot(x, w, sizes))
    held = jnp.where((known < count)[order][:, None], result, 0)  # what is behind the last group is not defined
    return held[argsort(order)]
