"""The loss of a classifier whose classes are sharded: vocabulary-parallel, as the last layer of a large model has it.

All forms run inside `jax.shard_map`, over one axis or a tuple of axes in any order (`Y`, in logical order:
participant i holds the i-th contiguous part of the V classes). The loss of a token is
`(1 - s) * -log p[label] + s * mean over all V classes of -log p`, with p the softmax of its logits and s the label
smoothing. The largest logit is subtracted first, so that no exponential overflows. A token whose label is
`ignore_index` counts for nothing, even if its logits are NaN: its loss is zero, and so is its gradient.
"""

import operator
from typing import Any, NamedTuple, SupportsFloat, SupportsIndex

import jax
import jax.numpy as jnp
from jax import lax

from shardproof.impl.arguments import AxisName, check_axes, check_floating, check_kind, check_shape, refuse
from shardproof.impl.collectives import Block, axis_index, cast_varying
from shardproof.impl.dtypes import accumulator


def vocab_parallel_cross_entropy(
    logits: Block,
    labels: Block,
    axis_name: AxisName,
    *,
    label_smoothing: SupportsFloat = 0.0,
    ignore_index: SupportsIndex = -1,
) -> Block:
    """`logits [T, V_Y]`, `labels [T]` to `[T]`, typed invariant: a maximum and some sums per token travel.

    The loss has the dtype of the logits, and is computed in float32 or wider and rounded once.

    Arguments:
        logits: floating-point blocks of at least one class; further leading dimensions are as tokens.
        labels: integers of any width, numbers of classes of the whole; the same on all participants. The loss of one
            outside [0, V) other than `ignore_index` is NaN, a constant without gradient.
        label_smoothing: the share of the loss that is the mean over all classes, in [0, 1].
        ignore_index: the label of tokens that do not count; it may be that of a class.
    """
    name = "vocab_parallel_cross_entropy"
    check_floating(name, logits=logits)
    if not logits.ndim or not logits.shape[-1]:
        refuse(name, "logits", str(jax.typeof(logits)), "an array whose last dimension has at least one class")
    call = check_call(name, "logits", logits.shape, labels, axis_name, label_smoothing, ignore_index)
    wide = cast_varying(logits.astype(accumulator(logits)), call.axes)
    # zeros for tokens that do not count, of which nothing is computed
    return loss_of(sum_over_classes(jnp.where(call.ignored[..., None], 0, wide), call), call, logits.dtype)


class Call(NamedTuple):
    """The checked arguments of a loss; `classes` are 0 where the label is too large for their dtype."""

    axes: tuple[str, ...]
    classes: Block
    ignored: Block
    valid: Block
    smoothing: float
    class_count: int


class Sums(NamedTuple):
    """Sums over classes, of one participant or all: of exponentials, of the label's logit, and of all logits."""

    exponentials: Block
    of_labels: Block
    logits: Block

    def over(self, call: Call) -> "Sums":
        """The sums of all participants; that of all logits is sent only if there is smoothing."""
        if call.smoothing:
            return Sums(*lax.psum(tuple(self), call.axes))
        exponentials, of_labels = lax.psum((self.exponentials, self.of_labels), call.axes)
        return Sums(exponentials, of_labels, self.logits)


def check_call(
    function: str,
    argument: str,
    shape: tuple[int, ...],
    labels: Block,
    axis_name: AxisName,
    label_smoothing: SupportsFloat,
    ignore_index: SupportsIndex,
) -> Call:
    """Checks the arguments of a loss with logits of `shape`, `[…, V_Y]`, and a label for each token of `argument`."""
    axes = check_axes(function, axis_name)
    check_kind(function, "labels", labels, jnp.integer, "integers")
    check_shape(function, "labels", labels, shape[:-1], f"one label for each token of {argument}")
    smoothing, index = float(label_smoothing), operator.index(ignore_index)
    if not 0 <= smoothing <= 1:
        refuse(function, "label_smoothing", label_smoothing, "a number in [0, 1]")
    count = shape[-1] * lax.axis_size(axes)
    range_ = jnp.iinfo(labels.dtype)
    # compared in the labels' own dtype: a cast would make the largest unsigned label -1
    ignored = labels == index if range_.min <= index <= range_.max else jnp.zeros_like(labels, bool)
    valid = (labels >= 0) & ((labels < count) if count <= range_.max else True)
    classes = labels.astype(jnp.int64 if labels.dtype.itemsize > 4 else jnp.int32)
    return Call(axes, jnp.where(valid, classes, 0), ignored, valid, smoothing, count)


def sum_over_classes(wide: Block, call: Call) -> Sums:
    """The sums of all participants, of logits `[…, V_Y]` in the accumulator's dtype, less the largest one."""
    largest = lax.pmax(lax.stop_gradient(jnp.max(wide, axis=-1)), call.axes)
    shifted = wide - largest[..., None]
    right = of_labels(shifted, places_of(call, wide.shape[-1]))
    return Sums(jnp.sum(jnp.exp(shifted), axis=-1), right, jnp.sum(shifted, axis=-1)).over(call)


def places_of(call: Call, n: int) -> Block:
    """The place of each label among the n classes of this participant; outside [0, n) if another one has it."""
    return call.classes - axis_index(call.axes) * n


def of_labels(x: Block, places: Block) -> Block:
    """`[…, size]` to `[…]`: the element at each label's place, and 0 if that is outside."""
    held = (places >= 0) & (places < x.shape[-1])
    taken = jnp.take_along_axis(x, jnp.where(held, places, 0)[..., None], axis=-1)[..., 0]
    return jnp.where(held, taken, 0)


def loss_of(sums: Sums, call: Call, dtype: Any) -> Block:
    """The loss, rounded to a dtype, from sums over all classes of logits less the largest one."""
    right = sums.of_labels
    if call.smoothing:
        right = (1 - call.smoothing) * right + call.smoothing * (sums.logits / call.class_count)
    loss = jnp.where(call.valid, jnp.log(sums.exponentials) - right, jnp.nan)
    return jnp.where(call.ignored, 0, loss).astype(dtype)
