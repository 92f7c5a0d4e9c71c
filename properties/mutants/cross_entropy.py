"""Planted bugs of vocab_parallel_cross_entropy, and of its fusion with a projection."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shardproof.impl import cross_entropy
from shardproof.impl.collectives import cast_varying
from shardproof.properties.mutants.axes import AxisName, names, widened
from shardproof.properties.mutants.catalogue import mutant


def loss_with(
    logits: Array,
    labels: Array,
    axis_name: AxisName,
    *,
    label_smoothing: float,
    ignore_index: int,
    largest: Any = None,
    of_labels: Any = None,
) -> Array:
    """A right loss, in which a bug may replace the maximum or the label's logit."""
    axes = names(axis_name)
    labels = labels.astype(jnp.int32)
    ignored = labels == ignore_index
    wide = jnp.where(ignored[:, None], 0, cast_varying(widened(logits), axes))
    n, p = wide.shape[-1], lax.axis_size(axes)
    own = lax.stop_gradient(jnp.max(wide, axis=-1))
    most = lax.pmax(own, axes) if largest is None else largest(wide, own)
    shifted = wide - most[:, None]
    places = labels - lax.axis_index(axes) * n
    held = (places >= 0) & (places < n)
    taken = jnp.take_along_axis(shifted, jnp.clip(places, 0, n - 1)[:, None], axis=-1)[:, 0]
    right = jnp.where(held, taken, 0) if of_labels is None else of_labels(shifted, labels, held, taken)
    sums, right, total = lax.psum((jnp.sum(jnp.exp(shifted), axis=-1), right, jnp.sum(shifted, axis=-1)), axes)
    mean = total / (n * p)
    loss = jnp.log(sums) - (1 - label_smoothing) * right - label_smoothing * mean
    return jnp.where(ignored, 0, loss).astype(logits.dtype)


@mutant("vocab_parallel_cross_entropy", smallest=(2,), law="gradient")
def loss_whose_maximum_moves(logits: Array, labels: Array, axis_name: AxisName, **options: Any) -> Array:
    """Lets the gradient of every participant's own maximum through, which is not that of the one they share."""
    axes = names(axis_name)

    def moving(wide: Array, own: Array) -> Array:
        return lax.pmax(own, axes) + jnp.max(wide, axis=-1) - own

    return loss_with(logits, labels, axis_name, **options, largest=moving)


@mutant("vocab_parallel_cross_entropy", smallest=(2,))
def loss_of_clamped_labels(logits: Array, labels: Array, axis_name: AxisName, **options: Any) -> Array:
    """Adds the logit that clamping ends at, of participants that do not have the label."""
    return loss_with(logits, labels, axis_name, **options, of_labels=lambda *args: args[-1])


@mutant("vocab_parallel_cross_entropy", smallest=(1,), claims=("invalid_indices",))
def loss_of_labels_that_wrap(logits: Array, labels: Array, axis_name: AxisName, **options: Any) -> Array:
    """Counts labels below zero from the last class back, as NumPy does."""
    classes = logits.shape[-1] * lax.axis_size(names(axis_name))
    wrapped = labels.astype(jnp.int32)
    wrapped = jnp.where(
        (wrapped < 0) & (wrapped >= -classes) & (wrapped != options["ignore_index"]), wrapped % classes, wrapped
    )
    return cross_entropy.vocab_parallel_cross_entropy(logits, wrapped, axis_name, **options)


@mutant("vocab_parallel_cross_entropy", smallest=(1,), claims=("any_rank",))
def loss_of_turned_tokens(logits: Array, labels: Array, axis_name: AxisName, **options: Any) -> Array:
    """Numbers the tokens of several dimensions from the last one on: right of one dimension alone."""
    rows = logits.reshape(-1, logits.shape[-1])
    loss = cross_entropy.vocab_parallel_cross_entropy(rows, labels.reshape(-1), axis_name, **options)
    return loss.reshape(labels.shape[::-1]).T


@mutant("vocab_parallel_cross_entropy", smallest=(1,))
def loss_of_a_narrow_ignore_index(logits: Array, labels: Array, axis_name: AxisName, **options: Any) -> Array:
    """Casts the ignored label to the labels' dtype: in uint8, -1 is the last of 256 classes."""
    cast = int(np.asarray(options["ignore_index"]).astype(labels.dtype))
    return loss_with(logits, labels, axis_name, **{**options, "ignore_index": cast})


@mutant("projected_cross_entropy", smallest=(1,))
def projection_to_rounded_logits(x: Array, w: Array, labels: Array, axis_name: AxisName, **options: Any) -> Array:
    """Rounds logits of 16-bit floats to 16 bits before it takes their loss."""
    counts = labels.astype(jnp.int32) != options["ignore_index"]
    logits = (jnp.where(counts[:, None], widened(x), 0) @ widened(w)).astype(x.dtype)
    return loss_with(logits, labels, axis_name, **options)
