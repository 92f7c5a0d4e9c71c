"""The loss of a classifier whose classes are sharded: vocabulary-parallel, as the last layer of a large model has it.

The loss of a token is `(1 - s) * -log p[label] + s * mean over all V classes of -log p`, with p the softmax of its
logits and s the label smoothing. The largest logit is subtracted first, so that no exponential overflows. A token whose
label is `ignore_index` counts for nothing, even if its logits are NaN: its loss is zero, and so is its gradient.

The projected forms take the last layer's operands, `x` and the columns of W that each participant has: logits are
`x W`, in the accumulator's dtype. Of a large vocabulary they are what takes the most memory: the chunked form has those
of a few classes at a time, in the backward pass as well.
"""

import functools
import operator
from typing import Any, NamedTuple, SupportsFloat, SupportsIndex

import jax
import jax.numpy as jnp
from jax import lax

from shardproof.impl.arguments import AxisName, check_axes, check_floating, check_kind, check_rank, check_shape, refuse
from shardproof.impl.collectives import Block, accumulator, axis_index, cast_varying
from shardproof.impl.rings import align_types, multiply


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


CHUNK = 64
"""The number of classes of which `chunked_projected_cross_entropy` has logits at once, by default."""


def projected_cross_entropy(
    x: Block,
    w: Block,
    labels: Block,
    axis_name: AxisName,
    *,
    label_smoothing: SupportsFloat = 0.0,
    ignore_index: SupportsIndex = -1,
) -> Block:
    """`x [T, D]`, `w [D, V_Y]`, `labels [T]` to `[T]`, typed invariant: all logits, then a few numbers per token.

    A token whose label is `ignore_index` counts for nothing, even if its row of `x` is NaN: its loss is zero, and so is
    what it adds to any gradient, as long as `w` is finite. Operands are floating-point, x the same on all participants,
    w of at least one column; the loss has the dtype that they promote to. It is otherwise
    `vocab_parallel_cross_entropy`, of logits that are never rounded.
    """
    call = _check("projected_cross_entropy", x, w, labels, axis_name, label_smoothing, ignore_index)
    kept, wide = _mask_ignored(x, w, call), w.astype(accumulator(x, w))
    return loss_of(sum_over_classes(multiply(*align_types(kept, wide)), call), call, jnp.result_type(x, w))


def chunked_projected_cross_entropy(
    x: Block,
    w: Block,
    labels: Block,
    axis_name: AxisName,
    *,
    label_smoothing: SupportsFloat = 0.0,
    ignore_index: SupportsIndex = -1,
    chunk: int = CHUNK,
) -> Block:
    """`projected_cross_entropy` with no more than `chunk` classes' logits at a time.

    One pass over the classes, whose sum of exponentials is relative to the largest logit so far (Milakov and
    Gimelshein, Online normalizer calculation for softmax, 2018). No chunk is saved: the backward pass multiplies it
    once more.
    """
    name = "chunked_projected_cross_entropy"
    call = _check(name, x, w, labels, axis_name, label_smoothing, ignore_index)
    if chunk < 1:
        refuse(name, "chunk", chunk, "a number of classes of at least 1")
    kept, n, size = _mask_ignored(x, w, call), w.shape[1], min(chunk, w.shape[1])

    def logits_of(part: Block) -> Block:
        return multiply(*align_types(kept, part.astype(kept.dtype)))

    # logits are added up less that of the participant's first class, so that nothing is lost of large equal ones
    origin, places = lax.stop_gradient(logits_of(w[:, :1])[:, 0]), places_of(call, n)

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def step(carry: tuple[Block, Sums], at: tuple[Block, Block]) -> tuple[tuple[Block, Sums], None]:
        (largest, sums), (first, part) = carry, at
        wide = logits_of(part)
        new = jnp.maximum(largest, lax.stop_gradient(jnp.max(wide, axis=-1)))
        real = first + jnp.arange(size) < n
        exponentials = jnp.where(real, jnp.exp(wide - new[:, None]), 0)
        shifted = jnp.where(real, wide - origin[:, None], 0)
        return (
            new,
            Sums(
                sums.exponentials * jnp.exp(largest - new) + jnp.sum(exponentials, axis=1),
                sums.of_labels + of_labels(shifted, places - first),
                sums.logits + jnp.sum(shifted, axis=1),
            ),
        ), None

    # the last class once more, as often as it takes to fill the last chunk
    padded = jnp.pad(w, [(0, 0), (0, -n % size)], mode="edge")
    chunks = jnp.moveaxis(padded.reshape(len(w), -1, size), 1, 0)
    zeros = jnp.zeros_like(origin)
    start = origin, Sums(zeros, zeros, zeros)
    (own, sums), _ = lax.scan(step, start, (size * jnp.arange(len(chunks)), chunks))
    largest = lax.pmax(own, call.axes)
    # from here on all is less the largest logit of all participants
    off = origin - largest
    right = sums.of_labels + jnp.where((places >= 0) & (places < n), off, 0)
    total = Sums(sums.exponentials * jnp.exp(own - largest), right, sums.logits + n * off).over(call)
    return loss_of(total, call, jnp.result_type(x, w))


def _check(
    function: str,
    x: Block,
    w: Block,
    labels: Block,
    axis_name: AxisName,
    label_smoothing: SupportsFloat,
    ignore_index: SupportsIndex,
) -> Call:
    check_floating(function, x=x, w=w)
    for argument, array in (("x", x), ("w", w)):
        check_rank(function, argument, array, 2)
    if not w.shape[1]:
        refuse(function, "w", str(jax.typeof(w)), "an array of at least one column, of a class each")
    check_shape(function, "w", w, (x.shape[1], w.shape[1]), "a row for each column of x")
    shape = (x.shape[0], w.shape[1])
    return check_call(function, "x", shape, labels, axis_name, label_smoothing, ignore_index)


def _mask_ignored(x: Block, w: Block, call: Call) -> Block:
    """`x` in the accumulator's dtype, typed varying along all axes that anything varies along.

    The transpose of the cast is one sum, and would be another where x meets each of the others. Tokens that do not
    count are zeros, of which nothing is computed.
    """
    wide, *_ = align_types(x.astype(accumulator(x, w)), w, call.ignored, axis_name=call.axes)
    return jnp.where(call.ignored[:, None], 0, wide)
