"""Planted bugs of pipelines."""

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl.collectives import all_gather, permute
from shardproof.properties.mutants.axes import AxisName, names, typed
from shardproof.properties.mutants.catalogue import mutant


@mutant("pipeline", smallest=(1,))
def last_microbatch_dropped(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Stops a step too early, and gives of the last microbatch what it has of the one before, or nothing."""
    axes, dtype = names(axis_name), x.dtype
    if weights.shape[0] > x.shape[-1]:
        raise NotImplementedError("several layers")
    weights, x = typed(axis_name, weights, x)
    p, m, index = lax.axis_size(axes), x.shape[0], lax.axis_index(axes)
    y, done = jnp.zeros_like(x[0]), [jnp.zeros_like(x[0])]
    for t in range(m + p - 2):
        arrived = permute(y, axes, perm=[(i, i + 1) for i in range(p - 1)]) if t else y
        y = jnp.tanh(jnp.where(index == 0, x[min(t, m - 1)], arrived) @ weights).astype(dtype)
        done.append(y)
    outputs = jnp.stack([*done[len(done) - m + 1 :], done[-1]])
    return lax.psum(jnp.where(index == p - 1, outputs, jnp.zeros_like(outputs)), axes)


@mutant("pipeline", smallest=(2,), claims=("several_layers",))
def layers_of_one_after_another(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Takes all layers of a participant before those of the next one."""
    d = x.shape[-1]
    weights, x = typed(axis_name, weights, x)
    for layer in all_gather(weights, names(axis_name), tiled=True).reshape(-1, d, d):
        x = jnp.tanh(x @ layer)
    return x
