"""What a multilayer perceptron over a sharded sequence means, alone and behind a norm, and what its forms send.

Operands are blocks `x [*mesh.sizes, S, B, D]`, `scale [*mesh.sizes, D]` of the norm, `w_in [*mesh.sizes, D, F]` and
`w_out [*mesh.sizes, F, D]`. Derivatives
are by hand, and their transpose is taken over all blocks of all devices (see `oracles.collective_matmul`).
"""

from collections.abc import Sequence

from shardproof.oracles.collective_matmul import TransformerBlock
from shardproof.oracles.collectives import Axes, Blocks
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.norms import RmsNorm, widened

sequence_parallel_mlp = TransformerBlock(-3)
"""`X[S_Y, B, D] -> gathered -> W_in[D, F_Y] -> relu -> W_out[F_Y, D] -> [S_Y, B, D]`: a block, of whole positions."""


class NormalisedSequenceParallelMlp:
    """The same of `x / sqrt(mean(x^2) + epsilon) * scale`, the mean over the D features, all of which a position has.

    Arguments:
        norm: what is computed first, of positions on their own devices.
        mlp: what is computed then.
    """

    def __init__(self, norm: RmsNorm | None = None, mlp: TransformerBlock | None = None) -> None:
        self.norm, self.mlp = norm or RmsNorm(), mlp or sequence_parallel_mlp

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes, *, epsilon: float) -> list[Blocks]:
        """The result's blocks."""
        x, scale, *weights = widened(operands)
        normalised = self.norm.value([x, scale], mesh, (), epsilon=epsilon)
        return self.mlp.value([*normalised, *weights], mesh, axes)

    def pushforward(
        self, operands: Sequence[Blocks], tangents: Sequence[Blocks], mesh: MeshCase, axes: Axes, *, epsilon: float
    ) -> list[Blocks]:
        """The chain rule, forward."""
        (x, scale, *weights), (dx, dscale, *moved) = widened(operands), widened(tangents)
        normalised = self.norm.value([x, scale], mesh, (), epsilon=epsilon)
        changed = self.norm.pushforward([x, scale], [dx, dscale], mesh, (), epsilon=epsilon)
        return self.mlp.pushforward([*normalised, *weights], [*changed, *moved], mesh, axes)

    def pullback(
        self, operands: Sequence[Blocks], cotangents: Sequence[Blocks], mesh: MeshCase, axes: Axes, *, epsilon: float
    ) -> list[Blocks]:
        """The chain rule, backward: of the scale, what the device's own positions say."""
        x, scale, *weights = widened(operands)
        normalised = self.norm.value([x, scale], mesh, (), epsilon=epsilon)
        ct, *of_weights = self.mlp.pullback([*normalised, *weights], widened(cotangents), mesh, axes)
        return [*self.norm.pullback([x, scale], [ct], mesh, (), epsilon=epsilon), *of_weights]


normalised_sequence_parallel_mlp = NormalisedSequenceParallelMlp()
