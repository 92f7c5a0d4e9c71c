"""Right forms of losses."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.right.catalogue import right


def _wide(x: Array) -> Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _ids(labels: Array) -> Array:
    return labels.astype(jnp.int64 if labels.dtype.itemsize > 4 else jnp.int32)


@right("vocab_parallel_cross_entropy")
def loss_of_gathered_logsumexps(
    logits: Array, labels: Array, axis_name: AxisName, *, label_smoothing: float = 0.0, ignore_index: int = -1
) -> Array:
    """Every participant's logsumexp and means are gathered, and the label's logit is the owner's."""
    axes, ids = names(axis_name), _ids(labels)
    ignored = ids == ignore_index
    wide = jnp.where(ignored[:, None], 0, collectives.cast_varying(_wide(logits), axes))
    n, p = wide.shape[-1], lax.axis_size(axes)
    mine = jnp.take_along_axis(wide, (ids % n)[:, None], axis=-1)[:, 0]
    sums = collectives.all_gather_invariant(jax.nn.logsumexp(wide, axis=-1), axes)
    log_sum = jax.nn.logsumexp(sums, axis=0)
    means = collectives.all_gather_invariant(jnp.mean(wide, axis=-1) - log_sum, axes)
    logits_of_all = collectives.all_gather_invariant(mine - log_sum, axes)
    owner = jnp.arange(p)[:, None] == ids // n
    loss = -(1 - label_smoothing) * jnp.sum(jnp.where(owner, logits_of_all, 0), axis=0)
    if label_smoothing:
        loss = loss - label_smoothing * jnp.mean(means, axis=0)
    known = (ids >= 0) & (ids < n * p)
    return jnp.where(ignored, 0, jnp.where(known, loss, jnp.nan)).astype(logits.dtype)


@right("vocab_parallel_cross_entropy")
def loss_of_targets(
    logits: Array, labels: Array, axis_name: AxisName, *, label_smoothing: float = 0.0, ignore_index: int = -1
) -> Array:
    """The target as a distribution over all classes, in a product; one axis after the other, the last one first."""
    axes, ids = names(axis_name), _ids(labels)
    kept = (ids != ignore_index)[:, None]
    wide = jnp.where(kept, collectives.cast_varying(_wide(logits), axes), 0)
    n, p = wide.shape[-1], lax.axis_size(axes)
    most = lax.stop_gradient(jnp.max(wide, axis=-1, keepdims=True))
    for name in reversed(axes):
        most = lax.pmax(most, name)
    mine = lax.axis_index(axes) * n + jnp.arange(n)
    target = (1 - label_smoothing) * (ids[:, None] == mine) + label_smoothing / (n * p)
    both = jnp.sum(jnp.exp(wide - most), axis=-1), jnp.einsum("tv,tv->t", target.astype(wide.dtype), wide - most)
    for name in reversed(axes):
        both = lax.psum(both, name)
    known = (ids >= 0) & (ids < n * p)
    loss = jnp.where(known, jnp.log(both[0]) - both[1], jnp.nan)
    return jnp.where(kept[:, 0], loss, 0).astype(logits.dtype)


def _softmax(logits: Array, ids: Array, axes: tuple[str, ...], smoothing: float, ignore: int) -> tuple[Any, Any]:
    wide = jnp.where((ids == ignore)[:, None], 0, _wide(logits))
    n, p = wide.shape[-1], lax.axis_size(axes)
    shifted = wide - lax.pmax(jnp.max(wide, axis=-1), axes)[:, None]
    exponentials = jnp.exp(shifted)
    total = lax.psum(jnp.sum(exponentials, axis=-1), axes)
    one = ids[:, None] == lax.axis_index(axes) * n + jnp.arange(n)
    target = jnp.where(one, 1 - smoothing + smoothing / (n * p), smoothing / (n * p)).astype(wide.dtype)
    counts = (ids != ignore) & (ids >= 0) & (ids < n * p)
    loss = jnp.log(total) - lax.psum(jnp.sum(target * shifted, axis=-1), axes)
    loss = jnp.where(counts, loss, jnp.where(ids == ignore, 0, jnp.nan)).astype(logits.dtype)
    return loss, jnp.where(counts[:, None], exponentials / total[:, None] - target, 0)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _loss(logits: Array, ids: Array, axes: tuple[str, ...], smoothing: float, ignore: int) -> Array:
    return _softmax(logits, ids, axes, smoothing, ignore)[0]


def _loss_forward(
    logits: Array, ids: Array, axes: tuple[str, ...], smoothing: float, ignore: int
) -> tuple[Array, Array]:
    return _softmax(logits, ids, axes, smoothing, ignore)


def _loss_backward(axes: tuple[str, ...], smoothing: float, ignore: int, slope: Array, ct: Array) -> tuple[Any, None]:
    # where types are not checked, every participant has a cotangent of its own
    whole = ct if _is_shared(ct, axes) else lax.psum(ct, axes)
    return (slope * whole[:, None]).astype(ct.dtype), None


def _is_shared(ct: Array, axes: tuple[str, ...]) -> bool:
    """Whether a cotangent of an invariant result is typed as one for all, as it is where types are checked."""
    return collectives.types_are_checked(axes) and not set(axes) & collectives.varying(ct)


_loss.defvjp(_loss_forward, _loss_backward)


@right("vocab_parallel_cross_entropy")
def loss_with_a_gradient_of_its_own(
    logits: Array, labels: Array, axis_name: AxisName, *, label_smoothing: float = 0.0, ignore_index: int = -1
) -> Array:
    """The backward pass is written by hand: the softmax less the target."""
    axes = names(axis_name)
    return _loss(collectives.cast_varying(logits, axes), _ids(labels), axes, label_smoothing, ignore_index)
