"""Right forms of layers that look odd: pipelines, multilayer perceptrons, losses that are fused with a projection."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl.collectives import all_gather, permute
from shardproof.properties.mutants.axes import AxisName, names, typed
from shardproof.properties.mutants.catalogue import right


def _layer(y: Array, w: Array) -> Array:
    return jnp.tanh(jnp.matmul(y, w, preferred_element_type=jnp.promote_types(y.dtype, jnp.float32))).astype(y.dtype)


@right("pipeline")
def stages_all_at_once(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """All microbatches go through a layer before any is handed on: nobody works while another does."""
    weights, x = typed(axis_name, weights, x)
    p, index = lax.axis_size(axis_name), lax.axis_index(names(axis_name))
    for stage in range(p):
        y = _layer(x, weights)
        x = jnp.where(index == stage, y, x)
        if stage < p - 1:
            arrived = permute(x, axis_name, perm=[(stage, stage + 1)])
            x = jnp.where(index == stage + 1, arrived, x)
    return all_gather(x, names(axis_name))[-1]


@right("sequence_parallel_mlp")
def mlp_of_everyone(x: Array, w_in: Array, w_out: Array, axis_name: AxisName) -> Array:
    """Gathers positions by an einsum's operand, adds up all products everywhere, and keeps its own positions."""
    axes, dtype, own = names(axis_name), x.dtype, x.shape[0]
    x, w_in, w_out = typed(axis_name, x, w_in, w_out)
    if not x.size:
        return x
    wide = jnp.promote_types(dtype, jnp.float32)
    hidden = jnp.einsum("sbd,df->sbf", all_gather(x, axes, tiled=True), w_in, preferred_element_type=wide)
    hidden = jax.nn.relu(hidden.astype(dtype))
    total = lax.psum(jnp.einsum("sbf,fd->sbd", hidden, w_out, preferred_element_type=wide), axes)
    return lax.dynamic_slice_in_dim(total.astype(dtype), lax.axis_index(axes) * own, own)
