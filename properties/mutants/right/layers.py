"""Right forms of layers that look odd: pipelines, multilayer perceptrons, losses that are fused with a projection."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl.collectives import all_gather, cast_varying, permute, varying
from shardproof.properties.mutants.axes import AxisName, names
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


@right("pipeline")
def stages_one_microbatch_each(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """The layers, in their places among zeros, are added up, and microbatches go through them one by one."""
    axes, p = names(axis_name), lax.axis_size(axis_name)
    weights, x = _typed(axis_name, weights, x)
    mine = jnp.arange(p)[:, None, None] == lax.axis_index(axes)
    layers = lax.psum(jnp.where(mine, weights, jnp.zeros_like(weights)), axes)
    layers = cast_varying(layers, varying(x))

    def through(y: Array) -> Array:
        return lax.fori_loop(0, p, lambda i, y: _layer(y, layers[i]), y)

    return lax.map(jax.checkpoint(through), x[::-1])[::-1]


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


@right("normalised_sequence_parallel_mlp")
def norm_behind_the_gather(
    x: Array, scale: Array, w_in: Array, w_out: Array, axis_name: AxisName, *, epsilon: float
) -> Array:
    """Every participant normalises all positions, and hears of the scale through its own hidden values alone."""
    axes, dtype, own = names(axis_name), x.dtype, x.shape[0]
    x, scale, w_in, w_out = _typed(axis_name, x, scale, w_in, w_out)
    if not x.size:
        return x
    wide = jnp.promote_types(dtype, jnp.float32)
    every = all_gather(x, axes, tiled=True).astype(wide)
    root = jnp.sqrt(jnp.einsum("sbd,sbd->sb", every, every)[..., None] / every.shape[-1] + epsilon)
    normalised = (every / root * scale.astype(wide)).astype(dtype)
    hidden = jnp.einsum("sbd,df->sbf", normalised, w_in, preferred_element_type=wide)
    hidden = jax.nn.relu(hidden.astype(dtype))
    total = lax.psum(jnp.einsum("sbf,fd->sbd", hidden, w_out, preferred_element_type=wide), axes)
    return lax.dynamic_slice_in_dim(total.astype(dtype), lax.axis_index(axes) * own, own)
