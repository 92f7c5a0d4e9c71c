"""What is easily mistaken in what every shard computes by itself: what is beyond its ends."""

from collections.abc import Sequence

import numpy as np

from shardproof.oracles import local
from shardproof.oracles.collectives import Axes, Blocks
from shardproof.oracles.dtypes import wide
from shardproof.oracles.mesh import MeshCase


class OpenEnd(local.ShardRoll):
    """Shifts rows, and does not wrap them round."""

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes, *, shift: int) -> list[Blocks]:
        """Row i of a block is row i - shift of it, where there is one, less row i."""
        rows = operands[0].astype(wide(operands[0].dtype))
        sources = np.arange(rows.shape[-2]) - shift
        inside = (sources >= 0) & (sources < rows.shape[-2])
        with np.errstate(invalid="ignore"):
            return [np.where(inside[:, None], np.take(rows, np.where(inside, sources, 0), axis=-2), 0) - rows]


OF_SHARD_ROLL = {"zeros are shifted in where rows are to wrap round": OpenEnd()}
