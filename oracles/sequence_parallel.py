"""A multilayer perceptron over a sharded sequence, alone and behind a norm.

Operands are blocks `x [*mesh.sizes, S, B, D]`, `scale [*mesh.sizes, D]` of the norm, `w_in [*mesh.sizes, D, F]` and
`w_out [*mesh.sizes, F, D]`.
"""

from shardproof.oracles.collective_matmul import TransformerBlock
from shardproof.oracles.collectives import Axes, Blocks, Operands
from shardproof.oracles.dtypes import widen
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.norms import rms_norm

sequence_parallel_mlp = TransformerBlock(-3)
"""`X[S_Y, B, D] -> gathered -> W_in[D, F_Y] -> relu -> W_out[F_Y, D] -> [S_Y, B, D]`: a block, of whole positions."""


class NormalisedSequenceParallelMlp:
    """The same of `x / sqrt(mean(x^2) + epsilon) * scale`, the mean over the D features of a position."""

    def value(self, operands: Operands, mesh: MeshCase, axes: Axes, *, epsilon: float) -> list[Blocks]:
        """The result's blocks."""
        x, scale, *weights = widen(operands)
        normalised = rms_norm.value([x, scale], mesh, (), epsilon=epsilon)
        return sequence_parallel_mlp.value([*normalised, *weights], mesh, axes)

    def pushforward(
        self, operands: Operands, tangents: Operands, mesh: MeshCase, axes: Axes, *, epsilon: float
    ) -> list[Blocks]:
        """The chain rule, forward."""
        (x, scale, *weights), (dx, dscale, *moved) = widen(operands), widen(tangents)
        normalised = rms_norm.value([x, scale], mesh, (), epsilon=epsilon)
        changed = rms_norm.pushforward([x, scale], [dx, dscale], mesh, (), epsilon=epsilon)
        return sequence_parallel_mlp.pushforward([*normalised, *weights], [*changed, *moved], mesh, axes)

    def pullback(
        self, operands: Operands, cotangents: Operands, mesh: MeshCase, axes: Axes, *, epsilon: float
    ) -> list[Blocks]:
        """The chain rule, backward: the scale has the cotangent of the device's own positions."""
        x, scale, *weights = widen(operands)
        normalised = rms_norm.value([x, scale], mesh, (), epsilon=epsilon)
        ct, *of_weights = sequence_parallel_mlp.pullback([*normalised, *weights], widen(cotangents), mesh, axes)
        return [*rms_norm.pullback([x, scale], [ct], mesh, (), epsilon=epsilon), *of_weights]


normalised_sequence_parallel_mlp = NormalisedSequenceParallelMlp()
