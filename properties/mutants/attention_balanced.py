"""Planted bugs of attention with even work, whose participants take an early and a late half of the sequence."""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl.attention import ring_attention
from shardproof.impl.collectives import all_gather, cast_varying, varying
from shardproof.properties.mutants.axes import AxisName, names


def balanced(
    q: Array, k: Array, v: Array, axis_name: AxisName, causal: bool, *, own: bool = True, until: int = 0, late: int = 0
) -> Array:
    """A right form, of which a bug changes one thing; where nothing is balanced, the ring.

    Arguments:
        own: whether a late half sees the early one of its own participant.
        until: how many steps later the halves are taken to have changed sides.
        late: by how many the late halves are off.
    """
    axes, rows = names(axis_name), q.shape[0] // 2
    if not causal or q.shape[0] % 2:
        return ring_attention(q, k, v, axis_name, causal=causal)
    q, k, v = cast_varying((q, k, v), {*axes, *varying(q), *varying(k), *varying(v)})
    p, mine, wide = lax.axis_size(axes), lax.axis_index(axes), jnp.promote_types(q.dtype, jnp.float32)
    queries, keys, values = (
        all_gather(x.astype(wide), axis_name, tiled=True).reshape(2 * p, rows, *x.shape[1:]) for x in (q, k, v)
    )

    def half(x: Array, number: Any) -> Array:
        return lax.dynamic_index_in_dim(x, number % (2 * p), keepdims=False)

    def pair(query: Any, key: Any, counts: Any) -> tuple[Array, Array]:
        logits = jnp.einsum("shd,thd->hst", half(queries, query), half(keys, key))
        logits = logits / jnp.sqrt(jnp.asarray(q.shape[-1], wide))
        seen = (query * rows + jnp.arange(rows))[:, None] >= key * rows + jnp.arange(rows)
        return jnp.where(seen & counts, logits, -jnp.inf), half(values, key)

    def attended(query: Any, pairs: list[tuple[Any, Any]]) -> Array:
        found = [pair(query, key, counts) for key, counts in pairs]
        logits, seen = jnp.concatenate([x for x, _ in found], axis=-1), jnp.concatenate([y for _, y in found])
        weights = jnp.exp(logits - lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True)))
        return jnp.einsum("hst,thd->shd", weights / jnp.sum(weights, axis=-1, keepdims=True), seen)

    sources = [(step, (mine - step) % p) for step in range(1, p)]
    first = attended(mine, [(mine, True), *((j, step <= mine + until) for step, j in sources)])
    behind = 2 * p - 1 - mine - late
    others = [(j, True) for _, j in sources] + [(2 * p - 1 - j, step > mine + until) for step, j in sources]
    last = attended(behind, [(2 * p - 1 - mine, True), (mine, own), *others])
    early, rest = (all_gather(x, axis_name) for x in (first, last))
    halves = jnp.concatenate([early, rest[::-1]])
    return jnp.concatenate([half(halves, 2 * mine), half(halves, 2 * mine + 1)]).astype(q.dtype)
