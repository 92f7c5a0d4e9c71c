"""Planted bugs of global_norm and rms_norm."""

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import norms
from shardproof.impl.collectives import cast_varying
from shardproof.properties.mutants.axes import AxisName, names, widened
from shardproof.properties.mutants.catalogue import formula_of, mutant


@mutant("global_norm", smallest=(2,))
def norm_of_norms_added(x: Array, axis_name: AxisName) -> Array:
    """Adds up the participants' norms, and not their squares."""
    own = jnp.sqrt(jnp.sum(jnp.square(widened(x))))
    return lax.psum(cast_varying(own, names(axis_name)), axis_name).astype(x.dtype)


@mutant("global_norm", smallest=(1,))
def norm_by_a_reciprocal_root(x: Array, axis_name: AxisName) -> Array:
    """Multiplies the sum of squares by its reciprocal root, which is NaN where all of x is zero."""
    squares = lax.psum(cast_varying(jnp.sum(jnp.square(widened(x))), names(axis_name)), axis_name)
    return (squares * lax.rsqrt(squares)).astype(x.dtype)


@mutant("rms_norm", smallest=(1,), law="gradient")
def rms_that_is_stuck_at_zero(x: Array, scale: Array, axis_name: AxisName, *, epsilon: float) -> Array:
    """Takes the root of zero where a token is zero, whose derivative is NaN in the branch that is not chosen."""
    axes = names(axis_name)
    wide = widened(cast_varying(x, axes))
    mean = lax.psum(jnp.sum(jnp.square(wide), axis=-1, keepdims=True), axes) / (x.shape[-1] * lax.axis_size(axes))
    root = jnp.where(mean > 0, jnp.sqrt(mean) * jnp.sqrt(1 + epsilon / mean), epsilon**0.5)
    return (wide / root * widened(scale)).astype(x.dtype)


TRIFLE = 2.0**-21
"""Half a millionth: less than the roundings of a norm in float32 may make, and more than any of a double."""


@mutant("global_norm", smallest=(1,))
def norm_with_a_trifle_outside(x: Array, axis_name: AxisName) -> Array:
    """Adds half a millionth of the norm to it, less than roundings of float32 may make."""
    norm = norms.global_norm(x, axis_name)
    return norm + norm * TRIFLE


@mutant("global_norm", smallest=(1,), law="gradient")
def norm_with_a_trifle_in_its_gradient(x: Array, axis_name: AxisName) -> Array:
    """Has a gradient that is half a millionth too large, and the right value."""
    norm = norms.global_norm(x, axis_name)
    return norm + TRIFLE * (norm - lax.stop_gradient(norm))


@mutant("global_norm", law="communication", smallest=(1, 1), communication=formula_of("global_norm", "squares"))
def norm_over_one_axis_after_the_other(x: Array, axis_name: AxisName) -> Array:
    """Adds up squares over one axis of a tuple after the other."""
    axes = names(axis_name)
    squares = jnp.sum(jnp.square(widened(cast_varying(x, axes))))
    for name in axes:
        squares = lax.psum(squares, name)
    zero = squares == 0
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, squares))).astype(x.dtype)
