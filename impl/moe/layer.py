"""How a dispatch becomes a layer: the contract's signature, operands checked, tokens routed, and who is kept."""

from collections.abc import Callable

from shardproof.impl.arguments import AxisName
from shardproof.impl.collectives import Block
from shardproof.impl.moe.plan import ExpertWeights, Plan, Settings, planned


def moe_layer(function: str) -> Callable[[Callable[[Plan], Block]], Callable[..., Block]]:
    """A decorator of what makes the result of a plan: the layer with that docstring, under this name.

    Arguments of the layer are those of `dense_moe`.

    Where nothing can be kept the result is zero, and nothing is dispatched.
    """

    def layer_of(dispatched: Callable[[Plan], Block]) -> Callable[..., Block]:
        def layer(
            tokens: Block,
            router_weights: Block,
            expert_weights: ExpertWeights,
            axis_name: AxisName,
            *,
            top_k: int,
            capacity: int | None = None,
            policy: str = "probability",
            over: str = "chosen",
            capacity_per_sender: int | None = None,
        ) -> Block:
            settings = Settings(top_k, capacity, policy, over, capacity_per_sender)
            plan = planned(function, tokens, router_weights, expert_weights, axis_name, settings)
            return plan.result(dispatched)

        layer.__name__ = layer.__qualname__ = function
        layer.__module__, layer.__doc__ = dispatched.__module__, dispatched.__doc__
        return layer

    return layer_of
