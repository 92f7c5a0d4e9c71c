"""Right forms of losses."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import NamedSharding, PartitionSpec

from shardproof.impl import collectives
from shardproof.impl import projected_cross_entropy as forms
from shardproof.impl.arguments import Axes, as_axes
from shardproof.impl.collectives import all_gather_invariant, axis_index, cast_varying
from shardproof.impl.losses import assembled, data_parallel, fsdp_rows
from shardproof.impl.model import forward, squared_errors, unsharded_loss, wide
from shardproof.impl.rings import multiply
from shardproof.properties.mutants.axes import AxisName, names, widened
from shardproof.properties.mutants.mlp_loss import added_up, errors, of_layers, on_blocks, with_gradients_inside
from shardproof.properties.mutants.right.catalogue import right


def _ids(labels: Array) -> Array:
    return labels.astype(jnp.int64 if labels.dtype.itemsize > 4 else jnp.int32)


@right("vocab_parallel_cross_entropy")
def loss_of_gathered_logsumexps(
    logits: Array, labels: Array, axis_name: AxisName, *, label_smoothing: float = 0.0, ignore_index: int = -1
) -> Array:
    """Every participant's logsumexp and means are gathered, and the label's logit is the owner's."""
    axes, ids = names(axis_name), _ids(labels)
    ignored = ids == ignore_index
    wide = jnp.where(ignored[:, None], 0, collectives.cast_varying(widened(logits), axes))
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
    kept = jnp.where((ids != ignore_index)[:, None], widened(x), 0)
    logits = sum(kept[:, i : i + 1] * widened(w)[i] for i in reversed(range(x.shape[1])))
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


@right("mlp_loss", whole=True)
def loss_on_whole_arrays(params: Any, batch: Any, **roles: Any) -> Array:
    """Leaves everything to the compiler."""
    return unsharded_loss(params, batch)


@right("mlp_loss", whole=True)
def loss_with_constraints(params: Any, batch: Any, *, mesh: Any, data: Any, model: Any) -> Array:
    """Says where examples and outputs are to be, and leaves the rest to the compiler."""
    rows = NamedSharding(mesh, PartitionSpec((*as_axes(data), *as_axes(model)) or None))
    inputs, targets = (lax.with_sharding_constraint(x, rows) for x in batch)
    outputs = lax.with_sharding_constraint(forward(params, inputs), rows)
    return jnp.mean(squared_errors(outputs, targets)).astype(inputs.dtype)


@right("mlp_loss", whole=True)
def loss_of_errors_brought_together(params: Any, batch: Any, *, mesh: Any, **roles: Any) -> Array:
    """The errors of all examples are gathered in the order of the mesh: of a mean any order is right."""

    def local(params: Any, batch: Any, examples: int, data: Axes, model: Axes) -> Array:
        every, own = tuple(sorted((*data, *model))), errors(params, batch, data, model)
        gathered = all_gather_invariant(cast_varying(own, every), every, tiled=True) if every else own
        return jnp.mean(gathered).astype(batch[0].dtype)

    return on_blocks(local, data_parallel.layout, params, batch, mesh, roles)


@right("mlp_loss", whole=True)
def loss_of_rows_added_up(params: Any, batch: Any, *, mesh: Any, **roles: Any) -> Array:
    """Every device puts its rows of the weights in their place in zeros, and these are added up."""

    def of_rows(x: Array, w: Array, b: Array, data: Axes, model: Axes) -> Array:
        every = (*data, *model)
        place = axis_index(every) * w.shape[0] if every else 0
        zeros = cast_varying(jnp.zeros((x.shape[1], w.shape[1]), wide(w).dtype), every)
        weights = added_up(lax.dynamic_update_slice_in_dim(zeros, wide(w), place, 0), every)
        return multiply(x, cast_varying(weights, every)) + assembled(b, [(model, 0)], along=every)

    return of_layers(of_rows, fsdp_rows.layout, params, batch, mesh, roles)


@right("mlp_loss", whole=True)
def loss_of_one_example_at_a_time(params: Any, batch: Any, **roles: Any) -> Array:
    """The loss of a single example, mapped over all of them."""

    def of_one(x: Array, target: Array) -> Array:
        return squared_errors(forward(params, x[None]), target[None])[0]

    inputs, targets = batch
    return jnp.mean(jax.vmap(of_one)(inputs, targets)).astype(inputs.dtype)


@right("mlp_loss", whole=True)
def loss_of_summed_gradients(params: Any, batch: Any, *, mesh: Any, **roles: Any) -> Array:
    """Gradients are taken inside, where no types are checked, of what a device has itself, and added up by hand."""

    def both(params: Any, batch: Any, examples: int, data: Axes, model: Axes) -> Any:
        def own(params: Any, batch: Any) -> Array:
            return jnp.sum(squared_errors(forward(params, batch[0]), batch[1])) / examples

        loss, (of_params, of_batch) = jax.value_and_grad(own, argnums=(0, 1))(params, batch)
        every = (*data, *model)
        of_params = jax.tree.map(lambda g: added_up(wide(g), every).astype(g.dtype), of_params)
        return added_up(loss, every).astype(batch[0].dtype), (of_params, of_batch)

    return with_gradients_inside(both, params, batch, mesh, roles)
