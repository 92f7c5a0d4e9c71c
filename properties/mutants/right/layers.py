"""Right forms of layers and losses that look odd: pipelines, perceptrons, classifiers, mixtures of experts."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.impl import cross_entropy as forms
from shardproof.impl.collectives import all_gather, permute
from shardproof.impl.model import unsharded_loss
from shardproof.properties.mutants.axes import AxisName, names, typed, widened
from shardproof.properties.mutants.catalogue import right
from shardproof.properties.mutants.layers import with_gradients_inside
from shardproof.properties.mutants.moe import Layer, keep
from shardproof.properties.mutants.operations import added_up


def _layer(y: Array, w: Array) -> Array:
    return jnp.tanh(jnp.matmul(y, w, preferred_element_type=jnp.promote_types(y.dtype, jnp.float32))).astype(y.dtype)


@right("pipeline")
def stages_all_at_once(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """All microbatches go through a layer before any is handed on: nobody works while another does."""
    weights, x = typed(axis_name, weights, x)
    p, index = lax.axis_size(axis_name), lax.axis_index(names(axis_name))
    for stage in range(p):
        y = _layer(x, weights)
        x = jnp.where(index == stage, y, x)
        if stage < p - 1:
            arrived = permute(x, axis_name, perm=[(stage, stage + 1)])
            x = jnp.where(index == stage + 1, arrived, x)
    return all_gather(x, names(axis_name))[-1]


@right("sequence_parallel_mlp")
def mlp_of_everyone(x: Array, w_in: Array, w_out: Array, axis_name: AxisName) -> Array:
    """Gathers positions by an einsum's operand, adds up all products everywhere, and keeps its own positions."""
    axes, dtype, own = names(axis_name), x.dtype, x.shape[0]
    x, w_in, w_out = typed(axis_name, x, w_in, w_out)
    if not x.size:
        return x
    wide = jnp.promote_types(dtype, jnp.float32)
    hidden = jnp.einsum("sbd,df->sbf", all_gather(x, axes, tiled=True), w_in, preferred_element_type=wide)
    hidden = jax.nn.relu(hidden.astype(dtype))
    total = lax.psum(jnp.einsum("sbf,fd->sbd", hidden, w_out, preferred_element_type=wide), axes)
    return lax.dynamic_slice_in_dim(total.astype(dtype), lax.axis_index(axes) * own, own)


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


@right("moe_layer")
def moe_choosing_one_by_one(*operands: Any, **options: Any) -> Array:
    """Chooses the highest logit, and then the highest of the others, as often as there are choices."""

    def one_by_one(logits: Array, top_k: int) -> Array:
        left, chosen = lax.stop_gradient(logits), []
        for _ in range(top_k):
            chosen.append(jnp.argmax(left, axis=1))
            left = jnp.where(jnp.arange(left.shape[1]) == chosen[-1][:, None], -jnp.inf, left)
        return jnp.stack(chosen, axis=1)

    return Layer(choose=one_by_one)(*operands, **options)


@right("moe_layer")
def moe_multiplying_by_zero(*operands: Any, **options: Any) -> Array:
    """Dropped tokens are multiplied by a mask of floats, by zero."""
    return Layer(count=lambda gates, kept: gates * kept.astype(gates.dtype))(*operands, **options)


@right("moe_layer")
def moe_for_choices_of_tokens(*operands: Any, **options: Any) -> Array:
    """Supports no policy but that by position, and says so of all others."""
    if options["policy"] != "position":
        raise NotImplementedError(f"policy={options['policy']!r}")
    return Layer(keep=lambda pairs, n, policy: keep(pairs, n, "position"))(*operands, **options)


@right("load_balancing_loss")
def balance_of_a_stable_sort(logits: Array, axis_name: AxisName, *, top_k: int) -> Array:
    """Chooses by the ranks of a stable sort of the negatives."""
    wide = widened(logits)
    first = jnp.argsort(-jnp.where(wide == 0, 0, lax.stop_gradient(wide)), axis=1, stable=True)
    chosen = jnp.sum(jnp.argsort(first, axis=1) < top_k, axis=0).astype(wide.dtype)
    tokens = len(logits) * lax.axis_size(axis_name)
    shares, means = (added_up(x, axis_name) / tokens for x in (chosen, jnp.sum(jax.nn.softmax(wide, axis=1), axis=0)))
    return (logits.shape[1] * jnp.sum(shares * means) / top_k).astype(logits.dtype)


@right("router_z_loss")
def z_of_log_probabilities(logits: Array, axis_name: AxisName) -> Array:
    """Takes the logarithm of the sum as a logit less its log-probability, of the last expert."""
    wide = widened(logits)
    log_sums = (wide - jax.nn.log_softmax(wide, axis=1))[:, -1]
    total = added_up(jnp.sum(log_sums**2), axis_name)
    return (total / (len(logits) * lax.axis_size(axis_name))).astype(logits.dtype)
