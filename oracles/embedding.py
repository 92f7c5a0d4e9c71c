"""An embedding lookup: row `ids[t]` of the whole table, for ids within it, and zeros for all others.

Operands are blocks `table [*mesh.sizes, V / p, D]` and `ids [*mesh.sizes, …]`, integers.
"""

import numpy as np

from shardproof.oracles.collectives import Axes, Blocks, Operands, Tangents, all_gather
from shardproof.oracles.dtypes import wide
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.transposes import all_gather_transpose


class EmbeddingLookup:
    """`table [V_Y, D]`, `ids […]` to `[…, D]`, which is the same on all participants if the ids are."""

    def value(self, operands: Operands, mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """Every device takes the rows that its ids name out of the whole table."""
        table, ids = operands
        if ids.dtype.kind not in "iu":
            raise ValueError(f"ids: {ids.dtype}: expected integers")
        whole = all_gather(table.astype(wide(table.dtype)), mesh, axes, tiled=True)
        result = np.zeros((*ids.shape, table.shape[-1]), whole.dtype)
        named = within(ids, whole.shape[-2])
        device = np.nonzero(named)[: len(mesh.sizes)]
        result[named] = whole[(*device, ids[named].astype(np.int64))]
        return [result]

    def pushforward(self, operands: Operands, tangents: Tangents, mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """The lookup is linear in the table: that in its tangent."""
        return self.value([tangents[0], operands[1]], mesh, axes)

    def pullback(self, operands: Operands, cotangents: Tangents, mesh: MeshCase, axes: Axes) -> list[Blocks | None]:
        """A row's cotangent is the sum of those of all places, on all participants, where its id is."""
        (table, ids), (ct,) = operands, cotangents
        rank = len(mesh.sizes)
        v = table.shape[rank] * mesh.axis_size(axes)
        whole = np.zeros((mesh.size, v, table.shape[-1]), wide(ct.dtype))
        named = within(ids, v)
        device = np.ravel_multi_index(np.nonzero(named)[:rank], mesh.sizes)
        np.add.at(whole.reshape(-1, table.shape[-1]), device * v + ids[named].astype(np.int64), ct[named])
        return [all_gather_transpose(whole.reshape(*mesh.sizes, *whole.shape[1:]), mesh, axes, tiled=True), None]


def within(ids: Blocks, v: int) -> np.ndarray:
    """True for ids of one of v rows: `[*mesh.sizes, …]`."""
    return (ids >= 0) & (ids < v)


embedding_lookup = EmbeddingLookup()
