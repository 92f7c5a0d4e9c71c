"""Norms of sharded arrays: the global norm that gradients are clipped by, and RMS normalisation of sharded features.

Squares must be in the range of float32 (or of the operand's own dtype, if that is wider): nothing is scaled beforehand,
as that would take a maximum over all participants, a second collective.
"""

import math
from typing import SupportsFloat

import jax
import jax.numpy as jnp
from jax import lax

from shardproof.impl.arguments import AxisName, check_axes, check_floating, check_shape, refuse
from shardproof.impl.collectives import Block, accumulator, cast_varying


def global_norm(x: Block, axis_name: AxisName) -> Block:
    """`x [M_Y, N]` to `[]`, typed invariant: the square root of the sum of all participants' sums of squares.

    x is floating-point, of any shape; replicas count once for each participant. The gradient is x by the norm, and zero
    where all of x is zero.
    """
    axes = check_axes("global_norm", axis_name)
    check_floating("global_norm", x=x)
    squares = jnp.sum(jnp.square(cast_varying(x, axes).astype(accumulator(x))))
    return _root(lax.psum(squares, axes)).astype(x.dtype)


def rms_norm(x: Block, scale: Block, axis_name: AxisName, *, epsilon: SupportsFloat) -> Block:
    """`x [T, D_Y]`, `scale [D_Y]` to `[T, D_Y]`, typed varying: a sum of squares per token travels.

    `x / sqrt(mean(x^2) + epsilon) * scale`, the mean over all of D, in the dtype that x and scale promote to, computed
    in float32 or wider. Operands are floating-point; further leading dimensions of x are as tokens. With an epsilon of
    0 a token of zeros gives NaN.
    """
    axes = check_axes("rms_norm", axis_name)
    check_floating("rms_norm", x=x, scale=scale)
    if not x.ndim:
        refuse("rms_norm", "x", str(jax.typeof(x)), "an array of at least 1 dimension, the last of them the features")
    check_shape("rms_norm", "scale", scale, x.shape[-1:], "one number for each feature of x")
    added, wide = float(epsilon), accumulator(x, scale)
    if not 0 <= added < math.inf:
        refuse("rms_norm", "epsilon", epsilon, "a finite number of at least 0")
    x, scale = cast_varying((x, scale), axes)
    squares = lax.psum(jnp.sum(jnp.square(x.astype(accumulator(x))), axis=-1, keepdims=True), axes)
    rooted = jnp.sqrt(squares.astype(wide) / max(1, x.shape[-1] * lax.axis_size(axes)) + added)
    return (x.astype(wide) / rooted * scale.astype(wide)).astype(jnp.result_type(x, scale))


def _root(squares: Block) -> Block:
    """The square root, with the derivative 0 at 0: of a NaN it is NaN."""
    zero = squares == 0
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, squares)))
