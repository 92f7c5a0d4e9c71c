"""Planted bugs of the norm before a multilayer perceptron over a sharded sequence."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import sequence_parallel as forms
from shardproof.impl.collectives import all_gather, cast_varying, varying
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.catalogue import formula_of, mutant

NAIVE = formula_of("normalised_sequence_parallel_mlp", "naive")


def _wide(x: Array) -> Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _along(axis_name: AxisName, *arrays: Array) -> set[str]:
    return {*names(axis_name)}.union(*map(varying, arrays))


def _behind(roots: Array, x: Array, scale: Array, w_in: Array, w_out: Array, axis_name: AxisName) -> Array:
    """The perceptron of positions by these roots."""
    normalised = (_wide(x) / roots * _wide(scale)).astype(x.dtype)
    return forms.sequence_parallel_mlp(normalised, w_in, w_out, axis_name)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _heard_by_the_first(scale: Array, axes: tuple[str, ...]) -> Array:
    return scale


def _first_alone(axes: tuple[str, ...], _: None, ct: Array) -> tuple[Array]:
    return (jnp.where(lax.axis_index(axes) == 0, ct, 0),)


_heard_by_the_first.defvjp(lambda scale, axes: (scale, None), _first_alone)


@mutant("normalised_sequence_parallel_mlp", smallest=(2,), law="gradient")
def scale_gradient_not_reduced(
    x: Array, scale: Array, w_in: Array, w_out: Array, axis_name: AxisName, *, epsilon: float
) -> Array:
    """The gradient of the scale is what the first participant's positions say, and not the sum of all."""
    own = _heard_by_the_first(cast_varying(scale, _along(axis_name, x, scale, w_in, w_out)), names(axis_name))
    return forms.normalised_sequence_parallel_mlp(x, own, w_in, w_out, axis_name, epsilon=epsilon)


@mutant("normalised_sequence_parallel_mlp", smallest=(1,))
def norm_of_the_sequences_together(
    x: Array, scale: Array, w_in: Array, w_out: Array, axis_name: AxisName, *, epsilon: float
) -> Array:
    """Takes the mean over the sequences of a position as well as over its features."""
    squares = jnp.mean(jnp.square(_wide(x)), axis=(1, 2), keepdims=True)
    return _behind(jnp.sqrt(squares + epsilon), x, scale, w_in, w_out, axis_name)


@mutant("normalised_sequence_parallel_mlp", smallest=(1,), law="communication", communication=NAIVE)
def norm_whose_roots_travel(
    x: Array, scale: Array, w_in: Array, w_out: Array, axis_name: AxisName, *, epsilon: float
) -> Array:
    """Gathers all positions' roots besides, and takes its own out of them."""
    axes, own = names(axis_name), x.shape[0]
    root = jnp.sqrt(jnp.mean(jnp.square(_wide(x)), axis=-1, keepdims=True) + epsilon)
    every = all_gather(cast_varying(root, axes), axes, tiled=True)
    roots = lax.dynamic_slice_in_dim(every, lax.axis_index(axes) * own, own)
    return _behind(roots, x, scale, w_in, w_out, axis_name)
