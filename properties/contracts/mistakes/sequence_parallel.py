"""What is easily mistaken in a perceptron over a sharded sequence: relu, what is added up, and the norm before it."""

from collections.abc import Sequence

import numpy as np

from shardproof.oracles.collective_matmul import TransformerBlock
from shardproof.oracles.collectives import Axes, Blocks, ring_shift
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.norms import widened
from shardproof.oracles.sequence_parallel import NormalisedSequenceParallelMlp, SequenceParallelMlp
from shardproof.properties.contracts.mistakes.matmul import DerivativeEverywhere, NoRelu
from shardproof.properties.contracts.mistakes.norms import Centred, ConstantRoot, EpsilonBeside


class Neighbours(SequenceParallelMlp):
    """Gives a participant the positions of another one.

    Arguments:
        by: how far behind that is.
    """

    def __init__(self, by: int) -> None:
        super().__init__()
        self.by = by

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """The right blocks, handed on."""
        return [ring_shift(super().value(operands, mesh, axes)[0], mesh, axes, offset=self.by)]


class Mean(SequenceParallelMlp):
    """Takes the mean of all participants' products for their sum."""

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """The right blocks, by the number of participants."""
        right = TransformerBlock(-3).value([o.astype(np.float64) for o in operands], mesh, axes)
        return [right / mesh.axis_size(axes)]


class Twice(NormalisedSequenceParallelMlp):
    """Normalises what is normalised."""

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes, *, epsilon: float) -> list[Blocks]:
        """The perceptron of the norm of the norm."""
        x, scale, *weights = widened(operands)
        once = self.norm.value([x, scale], mesh, (), epsilon=epsilon)
        return super().value([*once, scale, *weights], mesh, axes, epsilon=epsilon)


MISTAKES = {
    "hidden values below zero have a derivative": SequenceParallelMlp(DerivativeEverywhere(-3)),
    "no relu is taken": SequenceParallelMlp(NoRelu(-3)),
    "every participant has the positions of the one before": Neighbours(1),
    "every participant has the positions of the one behind": Neighbours(-1),
    "the mean of all participants' products is taken for their sum": Mean(),
}

OF_NORMALISED = {
    "the root is a constant in the derivative": NormalisedSequenceParallelMlp(ConstantRoot()),
    "epsilon is added to the root, and not under it": NormalisedSequenceParallelMlp(EpsilonBeside()),
    "the mean is subtracted first": NormalisedSequenceParallelMlp(Centred()),
    "it is normalised twice": Twice(),
    "no relu is taken": NormalisedSequenceParallelMlp(mlp=SequenceParallelMlp(NoRelu(-3))),
}
