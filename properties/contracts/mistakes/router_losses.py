"""What is easily mistaken in the losses of a router: over which tokens a mean is taken, and of what."""

from collections.abc import Sequence

import numpy as np

from shardproof.oracles import router_losses
from shardproof.oracles.collectives import Axes, Blocks, all_reduce
from shardproof.oracles.mesh import MeshCase


class MeanOfMeans(router_losses.LoadBalancingLoss):
    """Takes the mean of the losses of each participant's tokens."""

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes, *, top_k: int) -> list[Blocks]:
        """The mean of what each has by itself."""
        (own,) = super().value(operands, mesh, (), top_k=top_k)
        return [all_reduce(own, mesh, axes) / mesh.axis_size(axes)]


class FirstChoices(router_losses.LoadBalancingLoss):
    """Counts first choices alone."""

    def chosen(self, logits: Blocks, top_k: int) -> Blocks:
        """The highest logits, counted k times."""
        return super().chosen(logits, 1) * top_k


class NotScaled(router_losses.LoadBalancingLoss):
    """Forgets the number of experts."""

    def weights(self, logits: Blocks, mesh: MeshCase, axes: Axes, top_k: int) -> Blocks:
        """Shares alone."""
        return super().weights(logits, mesh, axes, top_k) / logits.shape[-1]


class NotByChoices(router_losses.LoadBalancingLoss):
    """Takes choices by the number of tokens for shares."""

    def weights(self, logits: Blocks, mesh: MeshCase, axes: Axes, top_k: int) -> Blocks:
        """As often as a token chooses."""
        return super().weights(logits, mesh, axes, top_k) * top_k


class ChosenAlone(router_losses.LoadBalancingLoss):
    """Counts probabilities of chosen experts alone."""

    def weighted(self, p: Blocks, logits: Blocks, mesh: MeshCase, axes: Axes, top_k: int) -> Blocks:
        """Without those of others."""
        return super().weighted(p * self.chosen(logits, top_k), logits, mesh, axes, top_k)


class OwnTokens(router_losses.RouterZLoss):
    """Divides by the number of a participant's own tokens."""

    def tokens(self, own: int, mesh: MeshCase, axes: Axes) -> int:
        """Its own."""
        return max(1, own)


class NotSquared(router_losses.RouterZLoss):
    """Does not square."""

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """The mean of the logarithms."""
        return [self.mean(self.log_sums(np.asarray(operands[0])), mesh, axes)]


class SquareOfTheMean(router_losses.RouterZLoss):
    """Squares the mean of the logarithms."""

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """The square of one number."""
        return [self.mean(self.log_sums(np.asarray(operands[0])), mesh, axes) ** 2]


class MeanOverParticipants(router_losses.OfShards):
    """Takes the mean of all participants' losses where a shard's own is asked for."""

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes, **options: int) -> list[Blocks]:
        """The mean of what each has by itself."""
        (own,) = super().value(operands, mesh, axes, **options)
        return [all_reduce(own, mesh, axes) / mesh.axis_size(axes)]


OF_LOAD_BALANCING = {
    "the loss was the mean of each participant's": MeanOfMeans(),
    "first choices alone were counted": FirstChoices(),
    "the loss was not multiplied by the number of experts": NotScaled(),
    "choices were not divided by top_k": NotByChoices(),
    "probabilities of chosen experts alone were counted": ChosenAlone(),
}
"""The mistakes of the loss that balances experts, each by a clause that says so."""

OF_Z = {
    "the sum was divided by how many tokens a participant has": OwnTokens(),
    "logarithms were not squared": NotSquared(),
    "the mean of the logarithms was squared": SquareOfTheMean(),
}
"""The mistakes of the loss that keeps logits small."""

OF_SHARD_BALANCE = {
    "the loss was of the tokens of all participants": router_losses.load_balancing_loss,
    "the loss was the mean of each participant's": MeanOverParticipants(router_losses.load_balancing_loss),
    "first choices alone were counted": router_losses.OfShards(FirstChoices()),
    "the loss was not multiplied by the number of experts": router_losses.OfShards(NotScaled()),
    "choices were not divided by top_k": router_losses.OfShards(NotByChoices()),
    "probabilities of chosen experts alone were counted": router_losses.OfShards(ChosenAlone()),
}
"""The mistakes of a shard's loss that balances experts."""

OF_SHARD_Z = {
    "the loss was of the tokens of all participants": router_losses.router_z_loss,
    "logarithms were not squared": router_losses.OfShards(NotSquared()),
    "the mean of the logarithms was squared": router_losses.OfShards(SquareOfTheMean()),
}
"""The mistakes of a shard's loss that keeps logits small."""
