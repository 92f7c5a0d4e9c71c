"""Planted bugs of pipelines."""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import pipeline as forms
from shardproof.impl.collectives import all_gather, cast_varying, permute, varying
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.catalogue import mutant


def _onward(p: int) -> list[tuple[int, int]]:
    return [(i, i + 1) for i in range(p - 1)]


def _handed(
    weights: Array,
    x: Array,
    axis_name: AxisName,
    *,
    steps: Callable[[int, int], int] = lambda p, m: m + p - 1,
    pairs: Callable[[int], Sequence[tuple[int, int]]] = _onward,
    takes: Callable[[Array, Array, Array], Array] = lambda is_first, own, given: jnp.where(is_first, own, given),
    collected: Callable[[list[Array], int], list[Array]] = lambda done, m: done[-m:],
) -> Array:
    """A pipeline step by step, right as it is, of which a bug changes one thing."""
    axes, dtype = names(axis_name), x.dtype
    if weights.shape[0] > x.shape[-1]:
        raise NotImplementedError("several layers")
    weights, x = cast_varying((weights, x), {*axes, *varying(weights), *varying(x)})
    p, m, index = lax.axis_size(axes), x.shape[0], lax.axis_index(axes)
    y, done = jnp.zeros_like(x[0]), list[Array]()
    for t in range(steps(p, m)):
        arrived = permute(y, axes, perm=pairs(p)) if t else y
        y = jnp.tanh(takes(index == 0, x[min(t, m - 1)], arrived) @ weights).astype(dtype)
        done.append(y)
    outputs = jnp.stack(collected(done, m))
    return lax.psum(jnp.where(index == p - 1, outputs, jnp.zeros_like(outputs)), axes)


@mutant("pipeline", smallest=(1,))
def last_microbatch_dropped(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Stops a step too early, and gives of the last microbatch what it has of the one before, or nothing."""
    if len(x) + lax.axis_size(axis_name) == 2:  # of one step nothing is left
        return jnp.zeros_like(x)
    return _handed(
        weights,
        x,
        axis_name,
        steps=lambda p, m: m + p - 2,
        collected=lambda done, m: [*done[len(done) - m + 1 :], done[-1]],
    )


@mutant("pipeline", smallest=(1,))
def bubbles_from_behind(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Hands on round the ring, and the first participant adds what comes back to what it takes up."""
    return _handed(
        weights,
        x,
        axis_name,
        pairs=lambda p: [(i, (i + 1) % p) for i in range(p)],
        takes=lambda is_first, own, given: jnp.where(is_first, own, jnp.zeros_like(own)) + given,
    )


@mutant("pipeline", smallest=(1,), law="gradient")
def gradient_of_the_last_microbatch(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Gives the weights the gradient of the last microbatch alone, as if each took the place of the one before."""
    y = forms.pipeline(weights, x, axis_name)
    last = forms.pipeline(weights, lax.stop_gradient(x)[-1:], axis_name)
    still = forms.pipeline(lax.stop_gradient(weights), x, axis_name)
    return lax.stop_gradient(y - still) + still + (last - lax.stop_gradient(last)) if len(x) > 1 else y


@mutant("pipeline", smallest=(2,), claims=("several_layers",))
def layers_of_one_after_another(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Takes all layers of a participant before those of the next one."""
    axes, d = names(axis_name), x.shape[-1]
    weights, x = cast_varying((weights, x), {*axes, *varying(weights), *varying(x)})
    for layer in all_gather(weights, axes, tiled=True).reshape(-1, d, d):
        x = jnp.tanh(x @ layer)
    return x
