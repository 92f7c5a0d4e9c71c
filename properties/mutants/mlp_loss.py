"""Planted bugs of the loss of a model: in what is added up over devices, in how blocks are gathered."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

from shardproof.impl.arguments import Axes, as_axes
from shardproof.impl.losses import (
    Layout,
    data_parallel,
    fsdp_rows,
    gather_parameter,
    scattered_sum,
    tensor_parallel,
)
from shardproof.impl.model import activate, forward, squared_errors, wide
from shardproof.impl.rings import multiply
from shardproof.properties.mutants.axes import in_mesh_order
from shardproof.properties.mutants.catalogue import mutant

Local = Callable[[Any, Any, int, Axes, Axes], Any]
"""Blocks of parameters and batch, the number of all examples, the axes of data and model, to the loss."""

Linear = Callable[[Array, Array, Array, Axes, Axes], Array]
"""Blocks of x, W and b, the axes of `data` and of `model`, to the block of `x W + b`, in the accumulator's dtype."""


def on_blocks(
    local: Local, layout: Layout, params: Any, batch: Any, mesh: Any, roles: Any, *, checked: bool = True
) -> Array:
    """A function of blocks, as one of global arrays."""
    data, model = as_axes(roles["data"]), as_axes(roles["model"])
    specs = layout.specs(len(params), data=data, model=model)
    examples = batch[0].shape[0]
    mapped: Any = jax.shard_map(
        lambda params, batch: local(params, batch, examples, data, model),
        mesh=mesh,
        in_specs=specs,
        out_specs=PartitionSpec(),
        check_vma=checked,
    )
    return mapped(params, batch)


def errors(params: Any, batch: Any, data: Axes, model: Axes, linear: Linear = data_parallel.linear) -> Array:
    """The squared errors of a device's examples, as the loss has them."""
    x, targets = batch
    for at, (w, b) in enumerate(params):
        y = linear(x, w, b, data, model)
        x = activate(y, targets.dtype) if at < len(params) - 1 else y
    return squared_errors(x, targets)


def of_layers(linear: Linear, layout: Layout, params: Any, batch: Any, mesh: Any, roles: Any) -> Array:
    """The loss with layers of another kind, which is right in all else."""

    def local(params: Any, batch: Any, examples: int, data: Axes, model: Axes) -> Array:
        total = jnp.sum(errors(params, batch, data, model, linear)) / examples
        return added_up(total, (*data, *model)).astype(batch[0].dtype)

    return on_blocks(local, layout, params, batch, mesh, roles)


def added_up(x: Array, axes: Axes) -> Array:
    """The sum over axes, if there are any."""
    return lax.psum(x, axes) if axes else x


def devices(axes: Axes) -> int:
    """How many devices the axes connect."""
    return lax.axis_size(axes) if axes else 1


@mutant("mlp_loss", smallest=(1, 2), whole=True)
def loss_without_its_sum(params: Any, batch: Any, *, mesh: Any, **roles: Any) -> Array:
    """Every device returns the part of its own examples, and no types are checked."""

    def local(params: Any, batch: Any, examples: int, data: Axes, model: Axes) -> Array:
        return (jnp.sum(errors(params, batch, data, model)) / examples).astype(batch[0].dtype)

    return on_blocks(local, data_parallel.layout, params, batch, mesh, roles, checked=False)


@mutant("mlp_loss", smallest=(2, 2), whole=True)
def loss_of_rows_gathered_in_mesh_order(params: Any, batch: Any, *, mesh: Any, **roles: Any) -> Array:
    """Gathers rows in the order of the mesh, whatever that of the axis tuple is."""

    def linear(x: Array, w: Array, b: Array, data: Axes, model: Axes) -> Array:
        every = (*data, *model)
        weights = gather_parameter(w, [(in_mesh_order(every), 0)], along=every)
        return multiply(x, weights) + gather_parameter(b, [(model, 0)], along=every)

    return of_layers(linear, fsdp_rows.layout, params, batch, mesh, roles)


@mutant("mlp_loss", smallest=(1, 2), whole=True)
def loss_with_biases_before_the_sum(params: Any, batch: Any, *, mesh: Any, **roles: Any) -> Array:
    """Adds biases to every device's part of a product, so that they count as often as there are parts."""

    def linear(x: Array, w: Array, b: Array, data: Axes, model: Axes) -> Array:
        whole = gather_parameter(b, [(model, 0)], along=data)
        return scattered_sum(multiply(x, gather_parameter(w, along=data)) + whole, model)

    return of_layers(linear, tensor_parallel.layout, params, batch, mesh, roles)


@mutant("mlp_loss", law="gradient", smallest=(1, 2), whole=True)
def loss_of_constant_gathered_weights(params: Any, batch: Any, *, mesh: Any, **roles: Any) -> Array:
    """Takes weights to be constant that it gathers from several devices."""

    def linear(x: Array, w: Array, b: Array, data: Axes, model: Axes) -> Array:
        several = devices((*data, *model)) > 1
        return fsdp_rows.linear(x, lax.stop_gradient(w) if several else w, b, data, model)

    return of_layers(linear, fsdp_rows.layout, params, batch, mesh, roles)


Gradients = Callable[[Any, Any, int, Axes, Axes], Any]
"""As `Local`, to the loss and the gradients of its parameters and batch."""


def with_gradients_inside(gradients: Gradients, params: Any, batch: Any, mesh: Any, roles: Any) -> Array:
    """A data-parallel loss whose gradients are taken inside of `shard_map`, as in code from before there were types."""
    data, model = as_axes(roles["data"]), as_axes(roles["model"])
    specs, examples = data_parallel.layout.specs(len(params), data=data, model=model), batch[0].shape[0]
    mapped: Any = jax.shard_map(
        lambda params, batch: gradients(params, batch, examples, data, model),
        mesh=mesh,
        in_specs=specs,
        out_specs=(PartitionSpec(), specs),
        check_vma=False,
    )

    @jax.custom_vjp
    def loss(params: Any, batch: Any) -> Any:
        return mapped(params, batch)[0]

    def back(grads: Any, ct: Array) -> Any:
        return jax.tree.map(lambda g: (ct * g).astype(g.dtype), grads)

    loss.defvjp(mapped, back)
    return loss(params, batch)


def _gradients(reduced: Callable[[Array, Axes, Axes], Array], *, over_all: bool = False) -> Gradients:
    """The loss with the gradients of its parameters, each device's `reduced`; `over_all`: of the loss of all."""

    def both(params: Any, batch: Any, examples: int, data: Axes, model: Axes) -> Any:
        every = (*data, *model)

        def part(params: Any, batch: Any) -> Array:
            total = jnp.sum(squared_errors(forward(params, batch[0]), batch[1])) / examples
            return added_up(total, every) if over_all else total

        total, (of_params, of_batch) = jax.value_and_grad(part, argnums=(0, 1))(params, batch)
        loss = total if over_all else added_up(total, every)
        of_params = jax.tree.map(lambda g: reduced(wide(g), data, model).astype(g.dtype), of_params)
        return loss.astype(batch[0].dtype), (of_params, of_batch)

    return both


@mutant("mlp_loss", law="gradient", smallest=(1, 2), whole=True)
def loss_of_gradients_over_data_alone(params: Any, batch: Any, *, mesh: Any, **roles: Any) -> Array:
    """Adds up the gradients over one of the two roles that share the examples."""
    gradients = _gradients(lambda g, data, model: added_up(g, data))
    return with_gradients_inside(gradients, params, batch, mesh, roles)


@mutant("mlp_loss", law="gradient", smallest=(1, 2), whole=True)
def loss_of_unchecked_gradients(params: Any, batch: Any, *, mesh: Any, **roles: Any) -> Array:
    """Differentiates the loss of all devices on each of them, where no types are checked, and adds the gradients up."""
    gradients = _gradients(lambda g, data, model: added_up(g, (*data, *model)), over_all=True)
    return with_gradients_inside(gradients, params, batch, mesh, roles)
