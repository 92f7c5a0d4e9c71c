"""What is easily mistaken in norms: what is added up first, where epsilon goes, and what has a derivative."""

from collections.abc import Sequence

import numpy as np

from shardproof.oracles import norms
from shardproof.oracles.collectives import Axes, Blocks, all_reduce
from shardproof.oracles.mesh import MeshCase


class AddedUpFirst(norms.GlobalNorm):
    """Adds up the participants' elements, and squares the sums."""

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """The norm of the sum of all blocks."""
        (x,) = norms.widened(operands)
        return super().value([all_reduce(x, mesh, axes)], mesh, ())


class Squared(norms.GlobalNorm):
    """Takes no root."""

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """The sum of all squares."""
        return [np.square(super().value(operands, mesh, axes)[0])]


class EpsilonBeside(norms.RmsNorm):
    """Adds epsilon to the root."""

    def root(self, x: Blocks, mesh: MeshCase, axes: Axes, epsilon: float) -> Blocks:
        """The root of the mean square, and epsilon."""
        return super().root(x, mesh, axes, 0.0) + epsilon


class Centred(norms.RmsNorm):
    """Subtracts the mean first."""

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes, *, epsilon: float) -> list[Blocks]:
        """A layer normalisation."""
        x, scale = norms.widened(operands)
        return super().value([x - self.mean(x, mesh, axes), scale], mesh, axes, epsilon=epsilon)


class ConstantRoot(norms.RmsNorm):
    """Has the right values, and a derivative in which the root does not move."""

    def pushforward(
        self,
        operands: Sequence[Blocks],
        tangents: Sequence[Blocks],
        mesh: MeshCase,
        axes: Axes,
        *,
        epsilon: float,
    ) -> list[Blocks]:
        """The quotient rule without the derivative of the root."""
        (x, scale), (dx, dscale) = norms.widened(operands), norms.widened(tangents)
        r = self.root(x, mesh, axes, epsilon)
        return [(dx * norms.per_feature(scale, x, mesh) + x * norms.per_feature(dscale, x, mesh)) / r]

    def pullback(
        self,
        operands: Sequence[Blocks],
        cotangents: Sequence[Blocks],
        mesh: MeshCase,
        axes: Axes,
        *,
        epsilon: float,
    ) -> list[Blocks]:
        """Of x: the cotangent times scale, by the root."""
        (x, scale), (ct,) = norms.widened(operands), norms.widened(cotangents)
        of_x = ct * norms.per_feature(scale, x, mesh) / self.root(x, mesh, axes, epsilon)
        return [of_x, *super().pullback(operands, cotangents, mesh, axes, epsilon=epsilon)[1:]]


OF_GLOBAL_NORM = {
    "the participants' elements are added up before they are squared": AddedUpFirst(),
    "no root is taken": Squared(),
}

OF_RMS_NORM = {
    "the root is a constant in the derivative": ConstantRoot(),
    "epsilon is added to the root, and not under it": EpsilonBeside(),
    "the mean is subtracted first": Centred(),
}
