"""Right forms of losses."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.impl import projected_cross_entropy as forms
from shardproof.impl.model import unsharded_loss
from shardproof.properties.mutants.axes import AxisName, names, widened
from shardproof.properties.mutants.catalogue import right
from shardproof.properties.mutants.mlp_loss import with_gradients_inside


def _ids(labels: Array) -> Array:
    return labels.astype(jnp.int64 if labels.dtype.itemsize > 4 else jnp.int32)


def _softmax(logits: Array, ids: Array, axes: tuple[str, ...], smoothing: float, ignore: int) -> tuple[Any, Any]:
    wide = jnp.where((ids == ignore)[:, None], 0, widened(logits))
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
    """True if a cotangent of an invariant result is typed invariant, as it is where types are checked."""
    return collectives.types_are_checked(axes) and not set(axes) & collectives.varying(ct)


_loss.defvjp(_loss_forward, _loss_backward)


@right("vocab_parallel_cross_entropy")
def loss_with_a_gradient_of_its_own(
    logits: Array, labels: Array, axis_name: AxisName, *, label_smoothing: float = 0.0, ignore_index: int = -1
) -> Array:
    """The backward pass is written by hand: the softmax less the target."""
    axes = names(axis_name)
    return _loss(collectives.cast_varying(logits, axes), _ids(labels), axes, label_smoothing, ignore_index)


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


@right("mlp_loss", whole=True)
def loss_on_whole_arrays(params: Any, batch: Any, **roles: Any) -> Array:
    """Leaves everything to the compiler."""
    return unsharded_loss(params, batch)


@right("mlp_loss", whole=True)
def loss_of_summed_gradients(params: Any, batch: Any, *, mesh: Any, **roles: Any) -> Array:
    """Gradients are taken inside, where no types are checked, of what a device has itself, and added up by hand."""
    return with_gradients_inside(params, batch, mesh, roles, over_all=False)
