"""What each shard computes by itself: from its own rows, and nothing else."""

from collections.abc import Sequence

import numpy as np

from shardproof.oracles.collectives import Axes, Blocks
from shardproof.oracles.dtypes import wide
from shardproof.oracles.mesh import MeshCase


class ShardMean:
    """`[S_X, D]` to `[1_X, D]`: of every block the mean of its rows."""

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """Every device's own rows, added up and divided by how many there are."""
        (x,) = operands
        rows = x.astype(wide(x.dtype))
        with np.errstate(invalid="ignore"):  # infinities of both signs
            return [rows.sum(axis=-2, keepdims=True) / x.shape[-2]]

    def pushforward(
        self, operands: Sequence[Blocks], tangents: Sequence[Blocks], mesh: MeshCase, axes: Axes
    ) -> list[Blocks]:
        """The mean is linear."""
        return self.value(tangents, mesh, axes)

    def pullback(
        self, operands: Sequence[Blocks], cotangents: Sequence[Blocks], mesh: MeshCase, axes: Axes
    ) -> list[Blocks]:
        """Every row has its part of the cotangent."""
        (x,), (ct,) = operands, cotangents
        return [np.broadcast_to(ct.astype(wide(ct.dtype)) / x.shape[-2], x.shape).copy()]


class ShardRoll:
    """`[S_X, D]` to `[S_X, D]`: of every row the one `shift` places before it in its block, less itself."""

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes, *, shift: int) -> list[Blocks]:
        """Row i of a block is row i - shift of it, counted around, less row i."""
        (x,) = operands
        rows = x.astype(wide(x.dtype))
        with np.errstate(invalid="ignore"):  # infinities of one sign
            return [np.take(rows, self.sources(x.shape[-2], shift), axis=-2) - rows]

    def pushforward(
        self, operands: Sequence[Blocks], tangents: Sequence[Blocks], mesh: MeshCase, axes: Axes, *, shift: int
    ) -> list[Blocks]:
        """Rows are moved and subtracted, so tangents are."""
        return self.value(tangents, mesh, axes, shift=shift)

    def pullback(
        self, operands: Sequence[Blocks], cotangents: Sequence[Blocks], mesh: MeshCase, axes: Axes, *, shift: int
    ) -> list[Blocks]:
        """A row went to one place with a plus, and stayed in its own with a minus."""
        (ct,) = cotangents
        rows = ct.astype(wide(ct.dtype))
        back = np.empty_like(rows)
        back[..., self.sources(rows.shape[-2], shift), :] = rows
        with np.errstate(invalid="ignore"):
            return [back - rows]

    @staticmethod
    def sources(rows: int, shift: int) -> np.ndarray:
        """Which row of the block each row comes from."""
        return (np.arange(rows) - shift) % max(rows, 1)


shard_mean_of_block, shard_roll_of_block = ShardMean(), ShardRoll()
