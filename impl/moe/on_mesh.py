"""Layers of global arrays: tokens shared over data and expert axes, and one capacity for all of them.

What they give does not depend on the mesh: it is that of one device, which has all tokens and all experts.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec
from jaxtyping import Array, Float

from shardproof.impl.arguments import AxisName, as_axes, check_rank, refuse
from shardproof.impl.collectives import Block
from shardproof.impl.moe.dispatch import all_to_all, local, ring
from shardproof.impl.moe.plan import ExpertWeights, Plan, Settings, planned
from shardproof.impl.placing import check_parts, check_roles, placed


@runtime_checkable
class GlobalMoeLayer(Protocol):
    """A mixture of experts of global arrays; see `global_layer`."""

    def __call__(
        self,
        tokens: Float[Array, "t d"],
        router_weights: Float[Array, "d e"],
        expert_weights: ExpertWeights,
        *,
        mesh: Mesh | AbstractMesh,
        data: AxisName,
        expert: AxisName,
        top_k: int,
        capacity: int | None = None,
        policy: str = "probability",
        over: str = "chosen",
    ) -> Float[Array, "t f"]:
        """`tokens [T_XY, D]`, `router [D, E]`, `experts [E_Y, D, F]` to `[T_XY, F]`, with data X and expert Y."""


def global_layer(function: str, dispatched: Callable[[Plan], Block]) -> GlobalMoeLayer:
    """The layer of global arrays under this name, by what makes the result of a plan (see `dispatch`).

    `tokens [T_XY, D]`, `router [D, E]`, `experts [E_Y, D, F]` to `[T_XY, F]`, with data X and expert Y: experts are the
    same along X. Arrays that are laid out in another way are moved to that. The gradient of an expert is that of all
    tokens. On axes of type Explicit call it under `jax.jit`, or `jax.set_mesh`.

    The arguments of what it returns are those of `dense_moe`, but for these:

    Arguments:
        mesh: the mesh.
        data: the axis or axis tuple, in any order, over which tokens alone are shared; it may be of none, `()`.
        expert: the same over which experts are shared, and tokens as well; of one axis at least.
        capacity: the most pairs that an expert keeps, of all tokens of the array.
        policy: as in `dense_moe`, but for `"sender"`, whose buffers are those of a participant.

    Raises:
        ValueError: as `dense_moe`; and for axes that are not the mesh's, or are in both roles; for tokens or experts
            that these do not divide.
    """

    def whole(
        tokens: Float[Array, "t d"],
        router_weights: Float[Array, "d e"],
        expert_weights: ExpertWeights,
        *,
        mesh: Mesh | AbstractMesh,
        data: AxisName,
        expert: AxisName,
        top_k: int,
        capacity: int | None = None,
        policy: str = "probability",
        over: str = "chosen",
    ) -> Float[Array, "t f"]:
        of_data, of_experts = as_axes(data), as_axes(expert)
        every = (*of_data, *of_experts)
        rows, of_expert = PartitionSpec(every, None), PartitionSpec(of_experts, None, None)
        weights: list[Any] = [*expert_weights] if isinstance(expert_weights, list | tuple) else [expert_weights]
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh if isinstance(mesh, Mesh) else mesh):
            check_roles(function, mesh, data=of_data, expert=of_experts)
            if not of_experts:
                refuse(function, "expert", expert, "one axis at least")
            if policy == "sender":
                refuse(function, "policy", policy, "one that does not depend on the mesh, as others do not")
            arrays: list[tuple[str, Any, PartitionSpec]] = [
                ("tokens", tokens, rows),
                *(("expert_weights", w, of_expert) for w in weights),
            ]
            for name, x, layout in arrays:
                check_rank(function, name, x, len(layout))
                check_parts(function, name, x, layout, mesh)
        specs = rows, PartitionSpec(None, None), [of_expert] * len(weights)
        settings = Settings(top_k, capacity, policy, over)

        def blocks(tokens: Block, router: Block, weights: Any) -> Block:
            own = weights[0] if len(weights) == 1 else weights
            plan = planned(function, tokens, router, own, of_experts, settings, sharing=every)
            return plan.zeros() if plan.empty else dispatched(plan)

        laid_out = placed((tokens, router_weights, weights), specs, mesh)
        result: Array = jax.shard_map(blocks, mesh=mesh, in_specs=specs, out_specs=rows)(*laid_out)
        return result

    whole.__name__ = whole.__qualname__ = function
    return whole


global_all_to_all_moe = global_layer("global_all_to_all_moe", all_to_all.dispatched)
global_ring_moe = global_layer("global_ring_moe", ring.dispatched)
global_sorted_moe = global_layer("global_sorted_moe", local.dispatched)
