"""Right forms of the loss of a model: other layouts, other collectives, gradients of their own, or none of it."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import NamedSharding, PartitionSpec

from shardproof.impl.algorithms import ring_all_gather, ring_all_reduce
from shardproof.impl.arguments import as_axes
from shardproof.impl.collective_matmul.operands import multiply
from shardproof.impl.collectives import all_gather_invariant, axis_index, cast_varying
from shardproof.impl.losses import data_parallel, fsdp_rows, tensor_parallel
from shardproof.impl.losses.blocks import assembled
from shardproof.impl.losses.layout import Axes, Layout
from shardproof.impl.model import forward, linear, squared_errors, unsharded_loss, wide
from shardproof.properties.mutants.mlp_loss import added_up, devices, errors, of_layers, on_blocks
from shardproof.properties.mutants.mlp_loss_gradients import with_gradients_inside
from shardproof.properties.mutants.right.catalogue import right


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
def loss_as_a_mean_of_means(params: Any, batch: Any, *, mesh: Any, **roles: Any) -> Array:
    """The mean of the means of all devices, which have as many examples each."""

    def local(params: Any, batch: Any, examples: int, data: Axes, model: Axes) -> Array:
        every, own = (*data, *model), jnp.mean(errors(params, batch, data, model))
        return (lax.pmean(own, every) if every else own).astype(batch[0].dtype)

    return on_blocks(local, data_parallel.layout, params, batch, mesh, roles)


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
def loss_of_rows_from_a_ring(params: Any, batch: Any, *, mesh: Any, **roles: Any) -> Array:
    """The rows of the weights go round a ring of all devices."""

    def of_rows(x: Array, w: Array, b: Array, data: Axes, model: Axes) -> Array:
        every = (*data, *model)
        weights = ring_all_gather(wide(w), every, axis=0, tiled=True) if every else wide(w)
        return multiply(x, weights) + assembled(b, [(model, 0)], along=every)

    return of_layers(of_rows, fsdp_rows.layout, params, batch, mesh, roles)


@right("mlp_loss", whole=True)
def loss_of_sums_cut_to_features(params: Any, batch: Any, *, mesh: Any, **roles: Any) -> Array:
    """All of a product is added up on every device, by a ring, and each keeps its own features of it."""

    def of_features(x: Array, w: Array, b: Array, data: Axes, model: Axes) -> Array:
        part = multiply(x, assembled(w, along=data))
        if model:
            total, size = ring_all_reduce(part, model), part.shape[1] // devices(model)
            part = lax.dynamic_slice_in_dim(total, axis_index(model) * size, size, 1)
        return part + assembled(b, along=data)

    return of_layers(of_features, tensor_parallel.layout, params, batch, mesh, roles)


@right("mlp_loss", whole=True)
def loss_of_shared_columns(params: Any, batch: Any, *, mesh: Any, **roles: Any) -> Array:
    """The columns of the weights are shared over model: what goes into a layer is gathered, and nothing added up."""
    features = ((("data",), ("model",)), ((), ("model",)), (("model",),), (("data",), ("model",)))

    def of_columns(x: Array, w: Array, b: Array, data: Axes, model: Axes) -> Array:
        whole = lax.all_gather(x, model, axis=1, tiled=True) if model else x
        return multiply(whole, assembled(w, along=data)) + assembled(b, along=data)

    return of_layers(of_columns, Layout(*features), params, batch, mesh, roles)


@right("mlp_loss", whole=True)
def loss_with_a_column_of_ones(params: Any, batch: Any, **roles: Any) -> Array:
    """Biases are a row more of the weights, and inputs have a column more, of ones."""
    x, targets = batch
    for at, (w, b) in enumerate(params):
        ones = jnp.ones((x.shape[0], 1), x.dtype)
        y = multiply(wide(jnp.concatenate([x, ones], axis=1)), wide(jnp.concatenate([w, b[None]], axis=0)))
        x = jax.nn.relu(y).astype(targets.dtype) if at < len(params) - 1 else y
    return jnp.mean(squared_errors(x, targets)).astype(targets.dtype)


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


@right("mlp_loss", whole=True)
def loss_of_rematerialised_layers(params: Any, batch: Any, *, mesh: Any, **roles: Any) -> Array:
    """No type is checked, and every layer is computed again in the backward pass."""

    def local(params: Any, batch: Any, examples: int, data: Axes, model: Axes) -> Array:
        again = jax.checkpoint(lambda x, w, b, *axes: linear(x, w, b), static_argnums=(3, 4))
        total = jnp.sum(errors(params, batch, data, model, again)) / examples
        return added_up(total, (*data, *model)).astype(batch[0].dtype)

    return on_blocks(local, data_parallel.layout, params, batch, mesh, roles, checked=False)
