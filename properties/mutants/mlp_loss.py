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
    gather_parameter,
    scattered_sum,
    tensor_parallel,
)
from shardproof.impl.model import activate, forward, squared_errors, wide
from shardproof.impl.rings import multiply
from shardproof.properties.mutants.catalogue import mutant

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
