"""What is easily mistaken in a mixture of experts: what gates are, and who is dropped."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardproof.oracles.collectives import Axes, Blocks
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.moe.dropping import Dispatch
from shardproof.oracles.moe.expert_choice import ByExperts, ExpertChoice
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


@dataclass(frozen=True)
class Renormalised(MoeLayer):
    """A layer whose tokens divide their gates by the sum of those that are kept; of values alone.

    Arguments:
        layer: one whose gates add up to one for every token of which something is kept.
    """

    layer: MoeLayer

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes, **options: Any) -> list[Blocks]:
        """What the layer of such gates has."""
        return self.layer.value(operands, mesh, axes, **options)


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


class ChosenByKeptGates(OfKeptGates, ByExperts):
    """What those compute whose experts choose."""


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


@dataclass(frozen=True)
class Counting(MoeLayer):
    """A layer whose choices count something else than their gates, whoever is kept.

    Arguments:
        counts: given a token's gates `[k]`, what each choice counts `[k]`.
    """

    counts: Callable[[np.ndarray], np.ndarray]

    def gate(self, routing: Routing, token: int, choice: int) -> np.floating:
        """What a choice counts by mistake."""
        counted: np.floating = self.counts(routing.gates[token])[choice]
        return counted


class InStrides(MoeLayer):
    """A layer in which participant i has the experts i, i + p, i + 2 p and so on."""

    def routing(self, part: Part, settings: Settings) -> Routing:
        """What tokens choose, by the numbers that such experts would have if they were in order."""
        right, p = super().routing(part, settings), len(part.participants)
        return right._replace(experts=right.experts % p * (part.experts // p) + right.experts // p)


class FirstServed(MoeLayer):
    """A layer that serves the first expert of each participant alone."""

    def dispatch(self, routing: Routing, part: Part, settings: Settings) -> Dispatch:
        """Who is kept, but for those of other experts."""
        right, held = super().dispatch(routing, part, settings), part.experts // len(part.participants)
        return replace(right, kept=tuple(pair for pair in right.kept if pair.expert % held == 0))


class RoomForOwn(MoeLayer):
    """A layer without a capacity whose experts have room for as many tokens as one participant has."""

    def dispatch(self, routing: Routing, part: Part, settings: Settings) -> Dispatch:
        """Who is kept, by mistake."""
        own = part.tokens // len(part.participants)
        return super().dispatch(
            routing, part, settings if settings.capacity is not None else replace(settings, capacity=own)
        )


class ChoosingTheWorst(ByExperts):
    """A layer whose experts choose the tokens of the lowest probability."""

    def dispatch(self, routing: Routing, part: Part, settings: Settings) -> Dispatch:
        """Whom experts choose by mistake."""
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
    "gates were divided by the sum of those that are kept": Renormalised(OfKeptGates()),
    "ties went to the highest expert": TiesToTheHighest(),
    "all choices of a token counted the same": Counting(lambda gates: np.full_like(gates, 1 / len(gates))),
    "gates were applied twice": Counting(np.square),
    "gates were left out": Counting(np.ones_like),
    "the best choice of a token had its smallest gate, and so on": Counting(lambda gates: gates[::-1]),
    "the last of several choices was lost": Counting(
        lambda gates: gates * (np.arange(len(gates)) < max(1, len(gates) - 1))
    ),
    "the experts of participant i were i, i + p, i + 2 p and so on": InStrides(),
    "the first expert of each participant alone was served": FirstServed(),
    "without a capacity an expert had room for as many tokens as a participant has": RoomForOwn(),
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
    "gates were divided by the sum of those that are kept": ExpertChoice(Renormalised(ChosenByKeptGates())),
    "experts chose the tokens of the lowest probability": ExpertChoice(ChoosingTheWorst()),
}
"""Those of experts that choose."""
