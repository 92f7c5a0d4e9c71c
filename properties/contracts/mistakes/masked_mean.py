"""What is easily mistaken in a masked mean: what becomes of masked NaN, and of no elements at all."""

from collections.abc import Sequence

import numpy as np

from shardproof.oracles import means
from shardproof.oracles.collectives import Axes, Blocks, all_reduce
from shardproof.oracles.dtypes import wide
from shardproof.oracles.mesh import MeshCase


class Multiplied(means.MaskedMean):
    """Multiplies by the mask."""

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """NaN where anything is not finite, masked or not."""
        values, mask = operands
        with np.errstate(invalid="ignore"):
            kept = values.astype(wide(values.dtype)) * np.where(mask, 1, 0)
        unmasked = np.where(np.isnan(kept), True, mask)
        right, nan = (super(Multiplied, self).value([kept, m], mesh, axes)[0] for m in (mask, unmasked))
        return [np.where(np.isnan(nan), nan, right)]


class ByNone(means.MaskedMean):
    """Divides by the number of elements that count where there is none."""

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """NaN where everything is masked."""
        ones = np.ones(operands[1].shape)
        (counted,), (mean,) = (super(ByNone, self).value([x, operands[1]], mesh, axes) for x in (ones, operands[0]))
        return [np.where(counted > 0, mean, np.nan)]


class ByOwn(means.MaskedMean):
    """Divides by how many elements count on each participant alone."""

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """The sum over all participants, on each by its own number."""
        values, mask = operands
        kept = np.where(mask, values.astype(wide(values.dtype)), 0)
        with np.errstate(invalid="ignore"):
            total = all_reduce(means.per_device(kept, mesh).sum(axis=-1), mesh, axes)
        return [total / np.maximum(means.per_device(mask, mesh).sum(axis=-1), 1)]


class OfRows(means.MaskedMean):
    """Takes the mean of the means of rows."""

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """The mean over the rows, which are along the last dimension, of the mean of each."""
        values, mask = operands
        rows = values.reshape(*mesh.sizes, -1, values.shape[-1])
        kept = np.where(mask.reshape(rows.shape), rows.astype(wide(values.dtype)), 0)
        with np.errstate(invalid="ignore"):
            total, count = (all_reduce(x.sum(axis=-1), mesh, axes) for x in (kept, mask.reshape(rows.shape)))
            return [(total / np.maximum(count, 1)).mean(axis=-1)]


MISTAKES = {
    "values are multiplied by the mask, which keeps a masked NaN": Multiplied(),
    "the sum is divided by how many elements count where none does": ByNone(),
    "the sum is divided by how many elements count on each participant alone": ByOwn(),
    "the means of rows, which count different numbers of elements, are averaged": OfRows(),
}
