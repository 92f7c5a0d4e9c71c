"""What is easily mistaken in a mixture of experts: what gates are, and who is dropped."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardproof.oracles.collectives import Axes, Blocks
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.moe.dropping import Dispatch
from shardproof.oracles.moe.expert_choice import ExpertChoice
from shardproof.oracles.moe.layer import MoeLayer, Part, Settings
from shardproof.oracles.moe.routing import Routing, route


@dataclass(frozen=True)
class Mistaken(MoeLayer):
    """A layer of other settings than those that it is given."""

    changed: Callable[[Settings], Settings]

    def routing(self, part: Part, settings: Settings) -> Routing:
        """What tokens choose, and their gates, by mistake."""
        return super().routing(part, self.changed(settings))

    def dispatch(self, routing: Routing, part: Part, settings: Settings) -> Dispatch:
        """Who is kept, by mistake."""
        return super().dispatch(routing, part, self.changed(settings))


def given(**changes: Any) -> Mistaken:
    """A layer with some settings that are always the same."""
    return Mistaken(lambda settings: replace(settings, **changes))


def for_each_sender(settings: Settings) -> Settings:
    """The capacity as that of each sender, which counts it for itself."""
    bounds = [n for n in (settings.capacity, settings.capacity_per_sender) if n is not None]
    return replace(settings, capacity=None, capacity_per_sender=min(bounds, default=None))


def policy_is(other: str, *policies: str) -> Mistaken:
    """A layer that takes some policies for another."""
    return Mistaken(lambda settings: replace(settings, policy=other) if settings.policy in policies else settings)


class Renormalised(MoeLayer):
    """A layer whose tokens divide their gates by the sum of those that are kept; of values alone."""

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes, **options: Any) -> list[Blocks]:
        """Of gates that add up to one for every token of which something is kept."""
        return OfKeptGates().value(operands, mesh, axes, **options)


class OfKeptGates(MoeLayer):
    """What renormalised layers compute."""

    def routing(self, part: Part, settings: Settings) -> Routing:
        """What tokens choose, and their gates, divided by the sum of those that are kept."""
        right = super().routing(part, settings)
        total = np.zeros(len(right.gates), right.gates.dtype)
        for pair in super().dispatch(right, part, settings).kept:
            total[pair.token] += right.gates[pair.token, pair.choice]
        return right._replace(gates=right.gates / np.where(total == 0, 1, total)[:, None])

    def dispatch(self, routing: Routing, part: Part, settings: Settings) -> Dispatch:
        """Who is kept, by the gates as they are."""
        return super().dispatch(super().routing(part, settings), part, settings)


class TiesToTheHighest(MoeLayer):
    """A layer in which of equal logits that of the highest expert is chosen first."""

    def routing(self, part: Part, settings: Settings) -> Routing:
        """What tokens choose if experts are numbered from behind."""
        last = route(part.logits[:, ::-1], settings.top_k, over=settings.over)
        return last._replace(experts=part.experts - 1 - last.experts)


class OfLowestGates(MoeLayer):
    """A layer whose experts keep the lowest gates where the highest win."""

    def dispatch(self, routing: Routing, part: Part, settings: Settings) -> Dispatch:
        """Who is kept, by mistake."""
        return super().dispatch(routing._replace(gates=-routing.gates), part, settings)


class Swapped(MoeLayer):
    """A layer whose gated experts take the second matrix for that of the gate."""

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes, **options: Any) -> list[Blocks]:
        """Of the other matrix as the gate's."""
        tokens, router, gate, up, down = operands
        return super().value([tokens, router, up, gate, down], mesh, axes, **options)


MISTAKES = {
    "gates were the softmax over all logits": given(over="all"),
    "the capacity was that of each sender": Mistaken(for_each_sender),
    "senders dropped nothing": given(capacity_per_sender=None),
    "nothing was dropped": given(capacity=None, capacity_per_sender=None),
    "the capacity was one more": Mistaken(lambda s: s if s.capacity is None else replace(s, capacity=s.capacity + 1)),
    "the lowest gates of an expert were kept, not the highest": OfLowestGates(),
    "gates were divided by the sum of those that are kept": Renormalised(),
    "ties went to the highest expert": TiesToTheHighest(),
    "all policies were that by position": policy_is("position", "probability", "choice", "sender"),
    "all policies were that by choice": policy_is("choice", "probability", "position", "sender"),
    "all policies were that by probability": policy_is("probability", "position", "choice", "sender"),
}
"""The mistakes, each by a clause that says so."""

OF_GATED = {"the matrices of gate and up were swapped": Swapped(), **MISTAKES}
"""Those of gated experts."""

OF_CHOICE = {
    "experts chose the first tokens": ExpertChoice(given(policy="position")),
    "experts chose tokens of each sender": ExpertChoice(MISTAKES["the capacity was that of each sender"]),
    "experts chose all tokens": ExpertChoice(given(capacity=None)),
}
"""Those of experts that choose."""
