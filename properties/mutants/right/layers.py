"""Right forms of layers that look odd: pipelines, multilayer perceptrons, losses that are fused with a projection."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl.collectives import all_gather, cast_varying, permute, reduce_scatter, varying
from shardproof.properties.mutants.axes import AxisName, names, widened
from shardproof.properties.mutants.right.catalogue import right


def _typed(axis_name: AxisName, *arrays: Array) -> Any:
    return cast_varying(arrays, {*names(axis_name)}.union(*map(varying, arrays)))


def _layer(y: Array, w: Array) -> Array:
    return jnp.tanh(jnp.matmul(y, w, preferred_element_type=jnp.promote_types(y.dtype, jnp.float32))).astype(y.dtype)


@right("pipeline")
def stages_all_at_once(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """All microbatches go through a layer before any is handed on: nobody works while another does."""
    weights, x = _typed(axis_name, weights, x)
    p, index = lax.axis_size(axis_name), lax.axis_index(names(axis_name))
    for stage in range(p):
        y = _layer(x, weights)
        x = jnp.where(index == stage, y, x)
        if stage < p - 1:
            arrived = permute(x, axis_name, perm=[(stage, stage + 1)])
            x = jnp.where(index == stage + 1, arrived, x)
    return all_gather(x, names(axis_name))[-1]


def _positions(axis_name: AxisName, rows: int) -> Array:
    return lax.axis_index(names(axis_name)) * rows + jnp.arange(rows)


def _logits(q: Array, k: Array, queries: Array, keys: Array, causal: bool) -> Array:
    """Of every head; for keys behind the queries a number so low that its power is 0."""
    logits = jnp.einsum("shd,thd->hst", widened(q), widened(k)) * lax.rsqrt(jnp.asarray(q.shape[-1], widened(q).dtype))
    return jnp.where(queries[:, None] >= keys, logits, -1e30) if causal else logits


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _recomputed(q: Array, k: Array, v: Array, axis_name: AxisName, causal: bool) -> Array:
    weights, _, values = _weights(q, k, v, axis_name, causal)
    return jnp.einsum("hst,thd->shd", weights, values).astype(q.dtype)


def _weights(q: Array, k: Array, v: Array, axis_name: AxisName, causal: bool) -> tuple[Array, Array, Array]:
    keys, values = (widened(all_gather(x, axis_name, tiled=True)) for x in (k, v))
    logits = _logits(q, keys, _positions(axis_name, q.shape[0]), jnp.arange(keys.shape[0]), causal)
    return jax.nn.softmax(logits), keys, values


def _forward(q: Array, k: Array, v: Array, axis_name: AxisName, causal: bool) -> tuple[Array, Any]:
    return _recomputed(q, k, v, axis_name, causal), (q, k, v)


def _backward(axis_name: AxisName, causal: bool, operands: Any, ct: Array) -> tuple[Array, ...]:
    q, k, v = operands
    weights, keys, values = _weights(q, k, v, axis_name, causal)
    wide = widened(ct)
    of_weights = jnp.einsum("shd,thd->hst", wide, values)
    of_logits = weights * (of_weights - jnp.sum(weights * of_weights, axis=-1, keepdims=True))
    of_logits = of_logits / jnp.sqrt(jnp.asarray(keys.shape[-1], keys.dtype))
    of_keys = jnp.einsum("hst,shd->thd", of_logits, widened(q))
    of_values = jnp.einsum("hst,shd->thd", weights, wide)
    mine = (reduce_scatter(x, axis_name, tiled=True) for x in (of_keys, of_values))
    return tuple(x.astype(ct.dtype) for x in (jnp.einsum("hst,thd->shd", of_logits, keys), *mine))


_recomputed.defvjp(_forward, _backward)


@right("attention")
def attention_with_its_own_gradient(
    q: Array, k: Array, v: Array, axis_name: AxisName, *, causal: bool = False
) -> Array:
    """Keeps nothing but its operands for the gradient, gathers and weighs once more, and adds up in float32."""
    return _recomputed(*_typed(axis_name, q, k, v), axis_name, causal)


@right("sequence_parallel_mlp")
def mlp_of_everyone(x: Array, w_in: Array, w_out: Array, axis_name: AxisName) -> Array:
    """Gathers positions by an einsum's operand, adds up all products everywhere, and keeps its own positions."""
    axes, dtype, own = names(axis_name), x.dtype, x.shape[0]
    x, w_in, w_out = _typed(axis_name, x, w_in, w_out)
    if not x.size:
        return x
    wide = jnp.promote_types(dtype, jnp.float32)
    hidden = jnp.einsum("sbd,df->sbf", all_gather(x, axes, tiled=True), w_in, preferred_element_type=wide)
    hidden = jax.nn.relu(hidden.astype(dtype))
    total = lax.psum(jnp.einsum("sbf,fd->sbd", hidden, w_out, preferred_element_type=wide), axes)
    return lax.dynamic_slice_in_dim(total.astype(dtype), lax.axis_index(axes) * own, own)
