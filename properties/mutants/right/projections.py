"""Right forms of a projection and its loss."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.impl import projected_cross_entropy as forms
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.right.catalogue import right


def _wide(x: Array) -> Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _loss_of_logits(logits: Array, ids: Array, axis_name: AxisName, smoothing: float, ignore: int) -> Array:
    """By the logarithm of a sum of exponentials of gathered ones; `ids` are those of classes, or ignored."""
    axes = names(axis_name)
    n, p = logits.shape[-1], lax.axis_size(axes)
    own = collectives.cast_varying(logits, axes)
    sums = jax.nn.logsumexp(collectives.all_gather_invariant(jax.nn.logsumexp(own, axis=-1), axes), axis=0)
    mine = lax.axis_index(axes) * n + jnp.arange(n)
    target = (1 - smoothing) * (ids[:, None] == mine) + smoothing / (n * p)
    right = lax.psum(jnp.sum(target.astype(own.dtype) * (own - sums[:, None]), axis=-1), axes)
    return jnp.where(ids == ignore, 0, -right)


@right("projected_cross_entropy")
def projection_of_summed_products(
    x: Array, w: Array, labels: Array, axis_name: AxisName, *, label_smoothing: float = 0.0, ignore_index: int = -1
) -> Array:
    """Logits as sums of outer products of one feature at a time, the last one first."""
    ids = labels.astype(jnp.int32)
    kept = jnp.where((ids != ignore_index)[:, None], _wide(x), 0)
    logits = sum(kept[:, i : i + 1] * _wide(w)[i] for i in reversed(range(x.shape[1])))
    return _loss_of_logits(jnp.asarray(logits), ids, axis_name, label_smoothing, ignore_index).astype(x.dtype)


@right("projected_cross_entropy")
def projection_in_chunks_of_one(
    x: Array, w: Array, labels: Array, axis_name: AxisName, *, label_smoothing: float = 0.0, ignore_index: int = -1
) -> Array:
    """A class at a time, from the last one to the first."""
    ids, axes = labels.astype(jnp.int32), names(axis_name)
    n, here = w.shape[-1], lax.axis_index(axes) * w.shape[-1]
    held = (ids >= here) & (ids < here + n)
    turned = jnp.where(held, 2 * here + n - 1 - ids, ids)
    turned = lax.psum(jnp.where(held, turned, 0), axes)  # the number that the label's owner has given it
    turned = jnp.where(ids == ignore_index, -1, turned)
    return forms.chunked_projected_cross_entropy(
        x, w[:, ::-1], turned, axis_name, label_smoothing=label_smoothing, ignore_index=-1, chunk=1
    )


def _both(x: Array, w: Array, ids: Array, axes: tuple[str, ...], smoothing: float, ignore: int) -> tuple[Any, Any]:
    counts = ids != ignore
    logits = jnp.where(counts[:, None], x, 0) @ w
    n, p = w.shape[-1], lax.axis_size(axes)
    shifted = logits - lax.pmax(jnp.max(logits, axis=-1), axes)[:, None]
    powers = jnp.exp(shifted)
    total = lax.psum(jnp.sum(powers, axis=-1), axes)
    one = ids[:, None] == lax.axis_index(axes) * n + jnp.arange(n)
    target = jnp.where(one, 1 - smoothing + smoothing / (n * p), smoothing / (n * p)).astype(logits.dtype)
    loss = jnp.where(counts, jnp.log(total) - lax.psum(jnp.sum(target * shifted, axis=-1), axes), 0)
    return loss, jnp.where(counts[:, None], powers / total[:, None] - target, 0)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _loss(x: Array, w: Array, ids: Array, axes: tuple[str, ...], smoothing: float, ignore: int) -> Array:
    return _both(x, w, ids, axes, smoothing, ignore)[0]


def _forward(
    x: Array, w: Array, ids: Array, axes: tuple[str, ...], smoothing: float, ignore: int
) -> tuple[Array, tuple[Array, Array, Array, Array]]:
    loss, slope = _both(x, w, ids, axes, smoothing, ignore)
    return loss, (x, w, ids, slope)


def _backward(axes: tuple[str, ...], smoothing: float, ignore: int, kept: Any, ct: Array) -> tuple[Any, Any, None]:
    x, w, ids, slope = kept
    shared = collectives.types_are_checked(axes) and not set(axes) & collectives.varying(ct)
    # where types are not checked, every participant has a cotangent of its own
    of_logits = slope * (ct if shared else lax.psum(ct, axes))[:, None]
    counts = (ids != ignore)[:, None]
    return jnp.where(counts, of_logits @ w.T, 0), jnp.where(counts, x, 0).T @ of_logits, None


_loss.defvjp(_forward, _backward)


@right("projected_cross_entropy")
def projection_with_a_gradient_of_its_own(
    x: Array, w: Array, labels: Array, axis_name: AxisName, *, label_smoothing: float = 0.0, ignore_index: int = -1
) -> Array:
    """The backward pass is written by hand: products with the softmax less the target."""
    axes, ids = names(axis_name), labels.astype(jnp.int32)
    along = {*axes, *(name for each in (x, w, ids) for name in collectives.varying(each))}
    ordered = [name for name in jax.sharding.get_abstract_mesh().axis_names if name in along]
    wide_x, wide_w = collectives.cast_varying((_wide(x), _wide(w)), ordered)
    return _loss(wide_x, wide_w, ids, axes, label_smoothing, ignore_index).astype(x.dtype)
