"""Planted bugs of attention, of losses of sharded classes, and of the loss of a model."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec

from shardproof.impl import cross_entropy
from shardproof.impl.arguments import Axes, as_axes
from shardproof.impl.collectives import all_gather, cast_varying, ring_shift
from shardproof.impl.losses import (
    Layout,
    data_parallel,
    gather_parameter,
    scattered_sum,
    tensor_parallel,
)
from shardproof.impl.model import activate, forward, squared_errors, wide
from shardproof.impl.rings import multiply
from shardproof.properties.mutants.axes import AxisName, names, typed, widened
from shardproof.properties.mutants.catalogue import mutant


def _logits(q: Array, k: Array) -> Array:
    return jnp.einsum("shd,thd->hst", widened(q), widened(k)) / jnp.sqrt(jnp.asarray(q.shape[-1], widened(q).dtype))


def _values(weights: Array, v: Array) -> Array:
    return jnp.einsum("hst,thd->shd", weights, v.astype(weights.dtype))


def _positions(axis_name: AxisName, rows: int) -> Array:
    return lax.axis_index(names(axis_name)) * rows + jnp.arange(rows)


def _masked(logits: Array, queries: Array, causal: bool) -> Array:
    """Minus infinity for keys behind the queries, which are at these positions."""
    return jnp.where(queries[:, None] >= jnp.arange(logits.shape[-1]), logits, -jnp.inf) if causal else logits


def _whole(q: Array, k: Array, v: Array, axis_name: AxisName, causal: bool) -> tuple[Array, Array]:
    """The logits, masked, of the participant's queries and all keys, and all values."""
    q, k, v = typed(axis_name, q, k, v)
    keys, values = (all_gather(x, axis_name, tiled=True) for x in (k, v))
    return _masked(_logits(q, keys), _positions(axis_name, q.shape[0]), causal), values


@mutant("attention", smallest=(2,))
def attention_causal_by_local_positions(q: Array, k: Array, v: Array, axis_name: AxisName, *, causal: bool) -> Array:
    """Masks by positions in the participant's own piece, and not in the whole sequence."""
    logits, values = _whole(q, k, v, axis_name, causal=False)
    logits = _masked(logits, jnp.arange(q.shape[0]), causal)
    return _values(jax.nn.softmax(logits), values).astype(q.dtype)


@mutant("attention", smallest=(1,))
def attention_without_the_maximum(q: Array, k: Array, v: Array, axis_name: AxisName, *, causal: bool = False) -> Array:
    """Takes powers of the logits as they are, which overflow."""
    logits, values = _whole(q, k, v, axis_name, causal)
    powers = jnp.exp(logits)
    return _values(powers / jnp.sum(powers, axis=-1, keepdims=True), values).astype(q.dtype)


@mutant("attention", smallest=(2,))
def ring_never_corrected(q: Array, k: Array, v: Array, axis_name: AxisName, *, causal: bool = False) -> Array:
    """Adds up by the maximum so far, and does not correct what was added up by another one."""
    dtype = q.dtype
    q, k, v = typed(axis_name, q, k, v)
    p, mine, rows = lax.axis_size(axis_name), lax.axis_index(names(axis_name)), q.shape[0]
    queries = _positions(axis_name, rows)
    highest, total, weighted = jnp.asarray(-jnp.inf), jnp.zeros(()), jnp.zeros(())
    for step in range(p):
        if step:
            k, v = ring_shift(k, axis_name), ring_shift(v, axis_name)
        logits = _masked(_logits(q, k), queries - (mine - step) % p * rows, causal)
        highest = lax.stop_gradient(jnp.maximum(highest, jnp.max(logits, axis=-1)))
        weights = jnp.exp(logits - highest[..., None])
        total, weighted = total + jnp.sum(weights, axis=-1), weighted + _values(weights, v)
    return (weighted / total.T[..., None]).astype(dtype)


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


Linear = Callable[[Array, Array, Array, Axes, Axes], Array]
"""Blocks of x, W and b, the axes of `data` and of `model`, to the block of `x W + b`, in the accumulator's dtype."""


def added_up(x: Array, axes: Axes) -> Array:
    """The sum over axes, if there are any."""
    return lax.psum(x, axes) if axes else x


def of_layers(layout: Layout, linear: Linear, params: Any, batch: Any, mesh: Any, roles: Any, *, added: bool) -> Array:
    """The loss with layers of another kind; unless `added` that of a device's own examples, without types."""
    data, model = as_axes(roles["data"]), as_axes(roles["model"])
    examples = batch[0].shape[0]

    def local(params: Any, batch: Any) -> Array:
        x, targets = batch
        for at, (w, b) in enumerate(params):
            y = linear(x, w, b, data, model)
            x = activate(y, targets.dtype) if at < len(params) - 1 else y
        total = jnp.sum(squared_errors(x, targets)) / examples
        return (added_up(total, (*data, *model)) if added else total).astype(targets.dtype)

    specs = layout.specs(len(params), data=data, model=model)
    mapped: Any = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=added)
    return mapped(params, batch)


@mutant("mlp_loss", smallest=(1, 2), whole=True)
def loss_without_its_sum(params: Any, batch: Any, *, mesh: Any, **roles: Any) -> Array:
    """Every device returns the part of its own examples, and no types are checked."""
    return of_layers(data_parallel.layout, data_parallel.linear, params, batch, mesh, roles, added=False)


@mutant("mlp_loss", smallest=(1, 2), whole=True)
def loss_with_biases_before_the_sum(params: Any, batch: Any, *, mesh: Any, **roles: Any) -> Array:
    """Adds biases to every device's part of a product, so that they count as often as there are parts."""

    def linear(x: Array, w: Array, b: Array, data: Axes, model: Axes) -> Array:
        whole = gather_parameter(b, [(model, 0)], along=data)
        return scattered_sum(multiply(x, gather_parameter(w, along=data)) + whole, model)

    return of_layers(tensor_parallel.layout, linear, params, batch, mesh, roles, added=True)


def with_gradients_inside(params: Any, batch: Any, mesh: Any, roles: Any, *, over_all: bool) -> Array:
    """A data-parallel loss whose gradients are taken inside of `shard_map`, as in code from before there were types.

    They are those of a device's own part, or wrongly of the loss of all, and are added up over devices.
    """
    data, model = as_axes(roles["data"]), as_axes(roles["model"])
    every, examples = (*data, *model), batch[0].shape[0]

    def part(params: Any, batch: Any) -> Array:
        total = jnp.sum(squared_errors(forward(params, batch[0]), batch[1])) / examples
        return added_up(total, every) if over_all else total

    def both(params: Any, batch: Any) -> Any:
        total, (of_params, of_batch) = jax.value_and_grad(part, argnums=(0, 1))(params, batch)
        total = total if over_all else added_up(total, every)
        of_params = jax.tree.map(lambda g: added_up(wide(g), every).astype(g.dtype), of_params)
        return total.astype(batch[0].dtype), (of_params, of_batch)

    specs = data_parallel.layout.specs(len(params), data=data, model=model)
    mapped: Any = jax.shard_map(both, mesh=mesh, in_specs=specs, out_specs=(PartitionSpec(), specs), check_vma=False)
    loss = jax.custom_vjp(lambda params, batch: mapped(params, batch)[0])
    loss.defvjp(mapped, lambda grads, ct: jax.tree.map(lambda g: (ct * g).astype(g.dtype), grads))
    found: Array = loss(params, batch)
    return found


@mutant("mlp_loss", law="gradient", smallest=(1, 2), whole=True)
def loss_of_unchecked_gradients(params: Any, batch: Any, *, mesh: Any, **roles: Any) -> Array:
    """Differentiates the loss of all devices on each of them, where no types are checked, and adds the gradients up."""
    return with_gradients_inside(params, batch, mesh, roles, over_all=True)
