"""Planted bugs of global_moe_layer: in whose tokens share a capacity, in how they are numbered, in their gradients."""

from collections.abc import Callable
from typing import Any

import jax
from jax import Array, lax
from jax.sharding import PartitionSpec

from shardproof.impl.arguments import Axes, as_axes
from shardproof.impl.moe import all_gather_moe
from shardproof.impl.moe.buffers import dispatch_by_all_to_all
from shardproof.impl.moe.plan import make_plan
from shardproof.properties.mutants.catalogue import mutant

Local = Callable[[Any, Axes, Axes], Array]
"""Blocks of tokens, router and experts, and the axes of data and of experts, to the result's block."""


def on_blocks(local: Local, operands: Any, *, mesh: Any, data: Any, expert: Any) -> Array:
    """A function of blocks, on global arrays."""
    of_data, of_experts = as_axes(data), as_axes(expert)
    every = (*of_data, *of_experts)
    specs = (PartitionSpec(every), PartitionSpec(), PartitionSpec(of_experts))
    function: Any = jax.shard_map(
        lambda *blocks: local(blocks, of_data, of_experts), mesh=mesh, in_specs=specs, out_specs=PartitionSpec(every)
    )
    result: Array = function(*operands)
    return result


def layer(blocks: Any, expert: Axes, sharing: Axes, **options: Any) -> Array:
    """A right layer, if `sharing` is."""
    tokens, router, weights = blocks
    plan = make_plan("moe", tokens, router, weights, expert, **options, sharing=sharing)
    return plan.result(dispatch_by_all_to_all)


@mutant("global_moe_layer", smallest=(1, 2), whole=True)
def global_moe_of_groups(*operands: Any, mesh: Any, data: Any, expert: Any, **options: Any) -> Array:
    """The capacity is that of the tokens of each group of devices that share the experts."""

    def local(blocks: Any, data: Axes, expert: Axes) -> Array:
        tokens, router, weights = blocks
        return all_gather_moe(tokens, router, weights, expert, **options)

    return on_blocks(local, operands, mesh=mesh, data=data, expert=expert)


@mutant("global_moe_layer", law="gradient", smallest=(1, 2), whole=True)
def global_moe_of_mean_gradients(*operands: Any, mesh: Any, data: Any, expert: Any, **options: Any) -> Array:
    """The gradient of an expert is the mean over the groups, not the sum."""

    def local(blocks: Any, data: Axes, expert: Axes) -> Array:
        tokens, router, weights = blocks
        part = weights / (lax.axis_size(data) if data else 1)
        held = part + lax.stop_gradient(weights - part)
        return layer((tokens, router, held), expert, (*data, *expert), **options)

    return on_blocks(local, operands, mesh=mesh, data=data, expert=expert)
