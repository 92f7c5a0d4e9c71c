"""The loss of a classifier together with its last projection, whose classes are sharded.

All forms run inside `jax.shard_map`, over one axis or a tuple of axes in any order (`Y`, in logical order:
participant i has the i-th contiguous part of the V columns of W). The logits are `x W`, in the accumulator's dtype,
and the loss is that of `shardproof.impl.cross_entropy`. Of a large vocabulary the logits are what takes the most
memory: the chunked form has those of a few classes at a time, in the backward pass as well.
"""

import functools
from typing import SupportsFloat, SupportsIndex

import jax
import jax.numpy as jnp
from jax import lax

from shardproof.impl.arguments import AxisName, check_floating, check_rank, check_shape, refuse
from shardproof.impl.collectives import Block
from shardproof.impl.cross_entropy import Call, Sums, check_call, loss_of, of_labels, places_of, sum_over_classes
from shardproof.impl.dtypes import accumulator
from shardproof.impl.rings import align_types, multiply

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
