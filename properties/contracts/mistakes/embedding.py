"""What is easily mistaken in a lookup: whose row an id names, and how often."""

from collections.abc import Callable, Sequence

import numpy as np

from shardproof.oracles import embedding
from shardproof.oracles.collectives import Axes, Blocks, all_gather
from shardproof.oracles.dtypes import wide
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.transposes import all_gather_transpose


class RowOfEach(embedding.EmbeddingLookup):
    """The sum of a row of each participant's part, or of none of it, where one participant's row is right.

    Arguments:
        row: given ids, the same counted from the first row of a part, and how many rows that has: which of them is
            taken; none, where it has no such row.
    """

    def __init__(self, row: Callable[[np.ndarray, np.ndarray, int], np.ndarray]) -> None:
        self.row = row

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """The sum of what is taken out of each part."""
        whole, taken = self.taken(operands, mesh, axes)
        found = [super(RowOfEach, self).value([whole, ids], mesh, ())[0] for ids in taken]
        return [np.sum(found, axis=0)]

    def pullback(
        self, operands: Sequence[Blocks], cotangents: Sequence[Blocks], mesh: MeshCase, axes: Axes
    ) -> list[Blocks | None]:
        """Every row that was taken gets the cotangent."""
        whole, taken = self.taken(operands, mesh, axes)
        pulled = [np.asarray(super(RowOfEach, self).pullback([whole, ids], cotangents, mesh, ())[0]) for ids in taken]
        return [all_gather_transpose(np.sum(pulled, axis=0), mesh, axes, tiled=True), None]

    def taken(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes) -> tuple[Blocks, list[Blocks]]:
        """The whole table, and for each part the rows of it that are taken; -1 for none."""
        table, ids = operands[0].astype(wide(operands[0].dtype)), operands[1].astype(np.int64)
        rows, found = table.shape[len(mesh.sizes)], []
        for first in range(0, rows * mesh.axis_size(axes), rows):
            own = self.row(ids, ids - first, rows)
            found.append(np.where((own >= 0) & (own < rows), first + own, -1))
        return all_gather(table, mesh, axes, tiled=True), found


class OneGradientPerRow(embedding.EmbeddingLookup):
    """A lookup whose gradient is put where it belongs, and not added to what is there."""

    def pullback(
        self, operands: Sequence[Blocks], cotangents: Sequence[Blocks], mesh: MeshCase, axes: Axes
    ) -> list[Blocks | None]:
        """Of the places where an id is on a device, the first alone has a cotangent."""
        ids, ct = operands[1], cotangents[0]
        kept = np.zeros(ids.shape, bool)
        for device in np.ndindex(mesh.sizes):
            kept[device].flat[np.unique(ids[device], return_index=True)[1]] = True
        return super().pullback(operands, [np.where(kept[..., None], ct, np.zeros((), ct.dtype))], mesh, axes)


MISTAKES = {
    "every participant takes ids for numbers of its own rows, and adds what it finds": RowOfEach(
        lambda ids, local, rows: ids
    ),
    "every participant clamps ids to its own rows, and adds what it finds": RowOfEach(
        lambda ids, local, rows: np.clip(local, 0, rows - 1)
    ),
    "every participant takes ids modulo the number of its rows, and adds what it finds": RowOfEach(
        lambda ids, local, rows: ids % rows
    ),
    "every participant adds what its rows hold at ids that it does not have, from the back or clamped": RowOfEach(
        lambda ids, local, rows: np.clip(np.where(local < 0, local + rows, local), 0, rows - 1)
    ),
    "the id behind a participant's last row is taken for that row, and added": RowOfEach(
        lambda ids, local, rows: np.where(local == rows, rows - 1, local)
    ),
    "every participant but the first takes the row before that of an id": RowOfEach(
        lambda ids, local, rows: np.where(local < ids, local - 1, local)
    ),
    "every participant but the first takes the row behind that of an id": RowOfEach(
        lambda ids, local, rows: np.where(local < ids, local + 1, local)
    ),
    "an id that is there several times gives its row the gradient of one place": OneGradientPerRow(),
}
