"""What it means that experts choose tokens: each those that suit it best, of all participants."""

from typing import Any

from shardproof.oracles.collectives import Axes, Blocks, Operands
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.moe.dropping import Dispatch, pairs_of
from shardproof.oracles.moe.layer import MoeLayer, Part, Settings
from shardproof.oracles.moe.routing import Routing


class ByExperts(MoeLayer):
    """A layer in which every token chooses all experts, and every expert the best of all tokens."""

    def dispatch(self, routing: Routing, part: Part, settings: Settings) -> Dispatch:
        """Of each expert the `capacity` tokens of the highest probability, ties by the token's number."""
        pairs = pairs_of(routing, len(part.participants), part.experts)
        chosen = []
        for expert in range(part.experts):
            asking = [pair for pair in pairs if pair.expert == expert]
            chosen += sorted(asking, key=lambda pair: (-pair.gate, pair.token))[: settings.capacity]
        return Dispatch(kept=tuple(chosen), dropped_by_sender=(), dropped_by_receiver=(), padded=())


class ExpertChoice:
    """`tokens [T_Y, D]`, `router [D, E]`, `experts [E_Y, D, F]` to `[T_Y, F]`: gates are the softmax of all logits."""

    def value(self, operands: Operands, mesh: MeshCase, axes: Axes, *, capacity: int) -> list[Blocks]:
        """Every token's sum of its probabilities times what the experts that chose it make of it."""
        return by_experts.value(operands, mesh, axes, **_settings(operands, capacity))

    def pushforward(
        self, operands: Operands, tangents: Operands, mesh: MeshCase, axes: Axes, *, capacity: int
    ) -> list[Blocks]:
        """That of the layer, at the choices as they are."""
        return by_experts.pushforward(operands, tangents, mesh, axes, **_settings(operands, capacity))

    def pullback(
        self, operands: Operands, cotangents: Operands, mesh: MeshCase, axes: Axes, *, capacity: int
    ) -> list[Blocks]:
        """That of the layer, at the choices as they are."""
        return by_experts.pullback(operands, cotangents, mesh, axes, **_settings(operands, capacity))


def _settings(operands: Operands, capacity: int) -> dict[str, Any]:
    return {"top_k": operands[1].shape[-1], "capacity": capacity, "over": "all"}


by_experts, expert_choice = ByExperts(), ExpertChoice()
