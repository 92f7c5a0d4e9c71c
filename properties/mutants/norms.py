"""Planted bugs of global_norm and rms_norm."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import norms
from shardproof.impl.collectives import all_gather, cast_varying, varying
from shardproof.properties.mutants.axes import AxisName, mesh_names, names, widened
from shardproof.properties.mutants.catalogue import formula_of, mutant
from shardproof.properties.mutants.gradients import with_mixed_residuals


@mutant("global_norm", smallest=(2,))
def norm_of_norms_added(x: Array, axis_name: AxisName) -> Array:
    """Adds up the participants' norms, and not their squares."""
    own = jnp.sqrt(jnp.sum(jnp.square(widened(x))))
    return lax.psum(cast_varying(own, names(axis_name)), axis_name).astype(x.dtype)


@mutant("global_norm", smallest=(2,))
def norm_of_the_own_part(x: Array, axis_name: AxisName) -> Array:
    """Takes the mean of the squares of all participants for their sum."""
    squares = lax.pmean(cast_varying(jnp.sum(jnp.square(widened(x))), names(axis_name)), axis_name)
    return jnp.sqrt(squares).astype(x.dtype)


@mutant("global_norm", smallest=(2,))
def norm_of_blocks_added_up(x: Array, axis_name: AxisName) -> Array:
    """Adds up the participants' elements before they are squared."""
    added = lax.psum(cast_varying(widened(x), names(axis_name)), axis_name)
    return jnp.sqrt(jnp.sum(jnp.square(added))).astype(x.dtype)


@mutant("global_norm", smallest=(1,), law="gradient")
def norm_without_its_half(x: Array, axis_name: AxisName) -> Array:
    """Has twice the gradient: the derivative of the square without that of the root's half."""
    norm = norms.global_norm(x, axis_name)
    return 2 * norm - lax.stop_gradient(norm)


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


@mutant("rms_norm", smallest=(1,))
def rms_with_epsilon_outside(x: Array, scale: Array, axis_name: AxisName, *, epsilon: float) -> Array:
    """Adds epsilon to the root, and not to the mean under it."""
    axes = names(axis_name)
    wide = widened(cast_varying(x, axes))
    total = lax.psum(jnp.sum(jnp.square(wide), axis=-1, keepdims=True), axes)
    root = jnp.sqrt(total / (x.shape[-1] * lax.axis_size(axes))) + epsilon
    return (wide / root * widened(scale)).astype(x.dtype)


@mutant("rms_norm", smallest=(1,), law="gradient")
def rms_whose_scale_learns_slowly(x: Array, scale: Array, axis_name: AxisName, *, epsilon: float) -> Array:
    """Takes the mean over the tokens for the gradient of the scale, and not their sum."""
    slow = scale / max(x.shape[0], 1)
    return norms.rms_norm(x, slow + lax.stop_gradient(scale - slow), axis_name, epsilon=epsilon)


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


@mutant("rms_norm", law="communication", smallest=(1,), communication=formula_of("rms_norm", "squares"))
def rms_norm_with_a_wasteful_gradient(x: Array, scale: Array, axis_name: AxisName, *, epsilon: float) -> Array:
    """Its gradient gathers all features."""
    along = [name for name in mesh_names() if name in {*names(axis_name), *varying(x), *varying(scale)}]

    def forward(x: Array, scale: Array) -> Array:
        return norms.rms_norm(x, scale, axis_name, epsilon=epsilon)

    def gathered(x: Array, scale: Array) -> Array:
        whole = widened(all_gather(x, names(axis_name), axis=-1, tiled=True))
        mean = jnp.mean(jnp.square(whole), axis=-1, keepdims=True)
        return (widened(x) / jnp.sqrt(mean + epsilon) * widened(scale)).astype(jnp.result_type(x, scale))

    def backward(operands: tuple[Array, Array], ct: Array) -> tuple[Array, Array]:
        x_ct, scale_ct = jax.vjp(gathered, *operands)[1](ct)
        return x_ct, scale_ct

    function = jax.custom_vjp(forward)
    function.defvjp(lambda x, scale: (forward(x, scale), (x, scale)), backward)
    return function(*cast_varying((x, scale), along))


@mutant("rms_norm", law="gradient", smallest=(1,))
def rms_norm_tuned_alone(x: Array, scale: Array, axis_name: AxisName, *, epsilon: float) -> Array:
    """Has no gradient for its scale where that alone is differentiated, as where only the norms are tuned."""
    return with_mixed_residuals(partial(norms.rms_norm, axis_name=axis_name, epsilon=epsilon), x, scale)


@mutant("rms_norm", smallest=(1,), claims=("any_rank",))
def rms_along_the_second_dimension(x: Array, scale: Array, axis_name: AxisName, *, epsilon: float) -> Array:
    """Takes the mean along dimension 1, which is that of the features of a matrix alone."""
    axes = names(axis_name)
    wide = widened(cast_varying(x, axes))
    total = lax.psum(jnp.sum(jnp.square(wide), axis=1, keepdims=True), axes)
    root = jnp.sqrt(total / (x.shape[1] * lax.axis_size(axes)) + epsilon)
    return (wide / root * widened(scale)).astype(x.dtype)
