"""Functions that each shard computes from its own rows."""

import numpy as np

from shardproof.oracles.collectives import Axes, Blocks, Operands
from shardproof.oracles.dtypes import widen
from shardproof.oracles.mesh import MeshCase


class ShardMean:
    """`[S_X, D]` to `[1_X, D]`: the mean of the rows of each block."""

    def value(self, operands: Operands, mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """Every device's own rows, added up and divided by how many there are."""
        (rows,) = widen(operands)
        with np.errstate(invalid="ignore"):  # infinities of both signs
            return [rows.sum(axis=-2, keepdims=True) / rows.shape[-2]]

    def pushforward(self, operands: Operands, tangents: Operands, mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """The mean is linear."""
        return self.value(tangents, mesh, axes)

    def pullback(self, operands: Operands, cotangents: Operands, mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """Every row has its part of the cotangent."""
        (x,), (ct,) = operands, widen(cotangents)
        return [np.broadcast_to(ct / x.shape[-2], x.shape).copy()]


class ShardRoll:
    """`[S_X, D]` to `[S_X, D]`: the row `shift` places before each row in its block, less that row."""

    def value(self, operands: Operands, mesh: MeshCase, axes: Axes, *, shift: int) -> list[Blocks]:
        """Row i of a block is row i - shift of it, counted around, less row i."""
        (rows,) = widen(operands)
        with np.errstate(invalid="ignore"):  # infinities of one sign
            return [np.roll(rows, shift, axis=-2) - rows]

    def pushforward(
        self, operands: Operands, tangents: Operands, mesh: MeshCase, axes: Axes, *, shift: int
    ) -> list[Blocks]:
        """Rows are moved and subtracted, so tangents are."""
        return self.value(tangents, mesh, axes, shift=shift)

    def pullback(
        self, operands: Operands, cotangents: Operands, mesh: MeshCase, axes: Axes, *, shift: int
    ) -> list[Blocks]:
        """A row went to one place with a plus, and stayed in its own with a minus."""
        (rows,) = widen(cotangents)
        with np.errstate(invalid="ignore"):
            return [np.roll(rows, -shift, axis=-2) - rows]


shard_mean_of_block, shard_roll_of_block = ShardMean(), ShardRoll()
