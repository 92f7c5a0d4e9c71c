"""What it means that experts choose tokens: each those that suit it best, of all participants."""

from typing import Any

from shardproof.oracles.collectives import Operands
from shardproof.oracles.moe.dropping import Dispatch, pairs_of
from shardproof.oracles.moe.layer import MoeLayer, Part, Settings
from shardproof.oracles.moe.routing import Routing


class ExpertChoice(MoeLayer):
    """`tokens [T_Y, D]`, `router [D, E]`, `experts [E_Y, D, F]` to `[T_Y, F]`: gates are the softmax of all logits.

    Every token chooses all experts, and every expert the best of all tokens; the option is `capacity`.
    """

    def settings(self, operands: Operands, **options: Any) -> Settings:
        """Those of a layer in which every token chooses all experts."""
        return Settings(top_k=operands[1].shape[-1], over="all", **options)

    def dispatch(self, routing: Routing, part: Part, settings: Settings) -> Dispatch:
        """Of each expert the `capacity` tokens of the highest probability, ties by the token's number."""
        pairs = pairs_of(routing, len(part.participants), part.experts)
        chosen = []
        for expert in range(part.experts):
            asking = [pair for pair in pairs if pair.expert == expert]
            chosen += sorted(asking, key=lambda pair: (-pair.gate, pair.token))[: settings.capacity]
        return Dispatch(kept=tuple(chosen), dropped_by_sender=(), dropped_by_receiver=())


expert_choice = ExpertChoice()
