"""Layers of global arrays: tokens shared over data and expert axes, and one capacity for all of them.

What they give does not depend on the mesh: it is that of one device, which has all tokens and all experts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from shardproof.impl.arguments import AxisName, as_axes, check_rank, refuse
from shardproof.impl.collectives import Block
from shardproof.impl.moe.buffers import dispatch_by_all_to_all, dispatch_round_a_ring
from shardproof.impl.moe.gathered import dispatch_sorted
from shardproof.impl.moe.plan import ExpertWeights, Plan, make_plan
from shardproof.impl.placing import check_parts, check_roles, place


@dataclass(frozen=True)
class GlobalMoeLayer:
    """A mixture of experts of global arrays."""

    name: str  # what messages call it
    dispatch: Callable[[Plan], Block]  # what makes the result of a plan, such as `dispatch_round_a_ring`

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(
        self,
        tokens: Block,
        router_weights: Block,
        expert_weights: ExpertWeights,
        *,
        mesh: Mesh | AbstractMesh,
        data: AxisName,
        expert: AxisName,
        top_k: int,
        capacity: int | None = None,
        policy: str = "probability",
        over: str = "chosen",
    ) -> Block:
        """`tokens [T_XY, D]`, `router [D, E]`, `experts [E_Y, D, F]` to `[T_XY, F]`, with data X and expert Y.

        Experts are the same along X, and the gradient of one is that of all tokens. Arrays that are laid out in another
        way are moved to that. On axes of type Explicit call it under `jax.jit`, or `jax.set_mesh`. Arguments that are
        not listed are those of `all_to_all_moe`.

        Arguments:
            data: the axis or axis tuple, in any order, over which tokens alone are shared; it may be of none, `()`.
            expert: the same over which experts are shared, and tokens as well; of one axis at least.
            capacity: the most pairs that an expert keeps, of all tokens of the array; None: all.
            policy: as in `all_to_all_moe`, but for `"sender"`, whose buffers are those of a participant.
        """
        of_data, of_experts = as_axes(data), as_axes(expert)
        every = (*of_data, *of_experts)
        rows, of_expert = PartitionSpec(every, None), PartitionSpec(of_experts, None, None)
        weights: list[Any] = [*expert_weights] if isinstance(expert_weights, list | tuple) else [expert_weights]
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh if isinstance(mesh, Mesh) else mesh):
            check_roles(self.name, mesh, data=of_data, expert=of_experts)
            if not of_experts:
                refuse(self.name, "expert", expert, "one axis at least")
            if policy == "sender":
                refuse(self.name, "policy", policy, "one that does not depend on the mesh, as others do not")
            for name, x, layout in [("tokens", tokens, rows), *(("expert_weights", w, of_expert) for w in weights)]:
                check_rank(self.name, name, x, len(layout))
                check_parts(self.name, name, x, layout, mesh)
        specs = rows, PartitionSpec(None, None), [of_expert] * len(weights)
        settings: dict[str, Any] = {"top_k": top_k, "capacity": capacity, "policy": policy, "over": over}

        def blocks(tokens: Block, router: Block, weights: Any) -> Block:
            plan = make_plan(self.name, tokens, router, weights, of_experts, **settings, sharing=every)
            return plan.result(self.dispatch)

        laid_out = place((tokens, router_weights, weights), specs, mesh)
        result: Block = jax.shard_map(blocks, mesh=mesh, in_specs=specs, out_specs=rows)(*laid_out)
        return result


global_all_to_all_moe = GlobalMoeLayer("global_all_to_all_moe", dispatch_by_all_to_all)
global_ring_moe = GlobalMoeLayer("global_ring_moe", dispatch_round_a_ring)
global_sorted_moe = GlobalMoeLayer("global_sorted_moe", dispatch_sorted)
