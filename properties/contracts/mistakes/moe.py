"""What is easily mistaken in a mixture of experts: what gates are, and who is dropped."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardproof.oracles.collectives import Axes, Blocks
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.moe.dropping import Dispatch, dispatch
from shardproof.oracles.moe.expert_choice import ExpertChoice
from shardproof.oracles.moe.layer import MoeLayer, Part
from shardproof.oracles.moe.routing import Routing

Room = tuple[int | None, str]
"""The capacity, and the policy."""


@dataclass(frozen=True)
class Mistaken(MoeLayer):
    """A layer that drops other pairs.

    Arguments:
        room: another capacity, or policy, given the right ones and what a process group holds.
    """

    room: Callable[[Room, Part], Room] = lambda room, part: room

    def dispatch(self, routing: Routing, part: Part, capacity: int | None, policy: str) -> Dispatch:
        """Who is kept, by mistake."""
        capacity, policy = self.room((capacity, policy), part)
        return dispatch(
            routing, len(part.members), part.experts,
            capacity=capacity, policy=policy, capacity_per_sender=self.capacity_per_sender,
        )  # fmt: skip


@dataclass(frozen=True)
class ForEachSender(MoeLayer):
    """A layer whose capacity each participant counts for itself."""

    def dispatch(self, routing: Routing, part: Part, capacity: int | None, policy: str) -> Dispatch:
        """Who is kept, of each sender."""
        return dispatch(
            routing, len(part.members), part.experts, capacity=None, policy=policy, capacity_per_sender=capacity
        )


def policy_is(other: str, *policies: str) -> Mistaken:
    """A layer that takes some policies for another."""
    return Mistaken(room=lambda room, part: (room[0], other if room[1] in policies else room[1]))


class Swapped(MoeLayer):
    """A layer whose gated experts take the second matrix for that of the gate."""

    def value(
        self,
        operands: Sequence[Blocks],
        mesh: MeshCase,
        axes: Axes,
        *,
        top_k: int,
        capacity: int | None = None,
        policy: str = "probability",
    ) -> list[Blocks]:
        """Of the other matrix as the gate's."""
        tokens, router, gate, up, down = operands
        swapped = [tokens, router, up, gate, down]
        return super().value(swapped, mesh, axes, top_k=top_k, capacity=capacity, policy=policy)


MISTAKES = {
    "gates were the softmax over all logits": MoeLayer(over="all"),
    "the capacity was that of each sender": ForEachSender(),
    "nothing was dropped": Mistaken(room=lambda room, part: (None, room[1])),
    "the capacity was one more": Mistaken(room=lambda room, part: (None if room[0] is None else room[0] + 1, room[1])),
    "all policies were that by choice": policy_is("choice", "probability", "position", "sender"),
    "all policies were that by probability": policy_is("probability", "position", "choice", "sender"),
}
"""The mistakes, each by a clause that says so."""

OF_GATED = {
    "the matrices of gate and up were swapped": Swapped(),
    "gates were the softmax over all logits": MoeLayer(over="all"),
    "nothing was dropped": MISTAKES["nothing was dropped"],
}
"""Those of gated experts."""

OF_CHOICE = {
    "experts chose the first tokens": ExpertChoice(Mistaken(over="all", room=lambda room, part: (room[0], "position"))),
    "experts chose tokens of each sender": ExpertChoice(ForEachSender(over="all")),
    "experts chose all tokens": ExpertChoice(Mistaken(over="all", room=lambda room, part: (None, room[1]))),
}
"""Those of experts that choose."""
