"""Planted bugs of attention."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl.collectives import all_gather, ring_shift
from shardproof.properties.mutants.axes import AxisName, names, typed, widened
from shardproof.properties.mutants.catalogue import mutant


def _logits(q: Array, k: Array) -> Array:
    return jnp.einsum("shd,thd->hst", widened(q), widened(k)) / jnp.sqrt(jnp.asarray(q.shape[-1], widened(q).dtype))


def _values(weights: Array, v: Array) -> Array:
    return jnp.einsum("hst,thd->shd", weights, v.astype(weights.dtype))


def _positions(axis_name: AxisName, rows: int) -> Array:
    return lax.axis_index(names(axis_name)) * rows + jnp.arange(rows)


def _masked(logits: Array, queries: Array, causal: bool) -> Array:
    """Minus infinity for keys behind the queries, which are at these positions."""
    return jnp.where(queries[:, None] >= jnp.arange(logits.shape[-1]), logits, -jnp.inf) if causal else logits


def _whole(q: Array, k: Array, v: Array, axis_name: AxisName, causal: bool) -> tuple[Array, Array]:
    """The logits, masked, of the participant's queries and all keys, and all values."""
    q, k, v = typed(axis_name, q, k, v)
    keys, values = (all_gather(x, axis_name, tiled=True) for x in (k, v))
    return _masked(_logits(q, keys), _positions(axis_name, q.shape[0]), causal), values


@mutant("attention", smallest=(2,))
def attention_causal_by_local_positions(q: Array, k: Array, v: Array, axis_name: AxisName, *, causal: bool) -> Array:
    """Masks by positions in the participant's own piece, and not in the whole sequence."""
    logits, values = _whole(q, k, v, axis_name, causal=False)
    logits = _masked(logits, jnp.arange(q.shape[0]), causal)
    return _values(jax.nn.softmax(logits), values).astype(q.dtype)


@mutant("attention", smallest=(1,))
def attention_without_the_maximum(q: Array, k: Array, v: Array, axis_name: AxisName, *, causal: bool = False) -> Array:
    """Takes powers of the logits as they are, which overflow."""
    logits, values = _whole(q, k, v, axis_name, causal)
    powers = jnp.exp(logits)
    return _values(powers / jnp.sum(powers, axis=-1, keepdims=True), values).astype(q.dtype)


@mutant("attention", smallest=(2,))
def ring_never_corrected(q: Array, k: Array, v: Array, axis_name: AxisName, *, causal: bool = False) -> Array:
    """Adds up by the maximum so far, and does not correct what was added up by another one."""
    dtype = q.dtype
    q, k, v = typed(axis_name, q, k, v)
    p, mine, rows = lax.axis_size(axis_name), lax.axis_index(names(axis_name)), q.shape[0]
    queries = _positions(axis_name, rows)
    highest, total, weighted = jnp.asarray(-jnp.inf), jnp.zeros(()), jnp.zeros(())
    for step in range(p):
        if step:
            k, v = ring_shift(k, axis_name), ring_shift(v, axis_name)
        logits = _masked(_logits(q, k), queries - (mine - step) % p * rows, causal)
        highest = lax.stop_gradient(jnp.maximum(highest, jnp.max(logits, axis=-1)))
        weights = jnp.exp(logits - highest[..., None])
        total, weighted = total + jnp.sum(weights, axis=-1), weighted + _values(weights, v)
    return (weighted / total.T[..., None]).astype(dtype)
