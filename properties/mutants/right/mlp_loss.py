"""Right forms of the loss of a model: other layouts, other collectives, gradients of their own, or none of it."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import NamedSharding, PartitionSpec

from shardproof.impl.arguments import as_axes
from shardproof.impl.collective_matmul.operands import multiply
from shardproof.impl.collectives import all_gather_invariant, axis_index, cast_varying
from shardproof.impl.losses import data_parallel, fsdp_rows
from shardproof.impl.losses.blocks import assembled
from shardproof.impl.losses.layout import Axes
from shardproof.impl.model import forward, squared_errors, unsharded_loss, wide
from shardproof.properties.mutants.mlp_loss import added_up, errors, of_layers, on_blocks
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
