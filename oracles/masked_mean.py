"""What a masked mean means: the mean over all elements of all participants where the mask is True.

Operands are blocks `values [*mesh.sizes, *block]` and `mask`, bool of the same shape, True where an element counts.
Derivatives are exact, in `wide` floats, and their transpose is taken over all blocks of all devices: each
has its own cotangent (see `oracles.transposes`). The mask has none.
"""

from collections.abc import Sequence

import numpy as np

from shardproof.oracles.collectives import Axes, Blocks, all_reduce
from shardproof.oracles.dtypes import wide
from shardproof.oracles.mesh import MeshCase


class MaskedMean:
    """`values [T_Y]`, `mask [T_Y]` to a scalar that all participants hold; 0 where everything is masked."""

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """The sum of what is not masked by how many elements that are.

        Raises:
            ValueError: for a mask of another shape than the values, or of numbers.
        """
        values, mask = operands
        if mask.shape != values.shape or mask.dtype != np.bool_:
            raise ValueError(f"mask: {mask.dtype}{list(mask.shape)}: expected bool{list(values.shape)}")
        kept = np.where(mask, values.astype(wide(values.dtype)), 0)
        with np.errstate(invalid="ignore"):
            total = all_reduce(per_device(kept, mesh).sum(axis=-1), mesh, axes)
        return [total / self._count(mask, mesh, axes)]

    def pushforward(
        self, operands: Sequence[Blocks], tangents: Sequence[Blocks | None], mesh: MeshCase, axes: Axes
    ) -> list[Blocks]:
        """The mean is linear: that of the tangents."""
        return self.value([np.asarray(tangents[0]), operands[1]], mesh, axes)

    def pullback(
        self, operands: Sequence[Blocks], cotangents: Sequence[Blocks], mesh: MeshCase, axes: Axes
    ) -> list[Blocks | None]:
        """Every element that counts gets its share of all participants' cotangents; a masked one gets 0."""
        (values, mask), (ct,) = operands, cotangents
        share = all_reduce(ct.astype(wide(ct.dtype)), mesh, axes) / self._count(mask, mesh, axes)
        aligned = share.reshape(*mesh.sizes, *(1,) * (values.ndim - len(mesh.sizes)))
        return [np.where(mask, aligned, 0), None]

    def _count(self, mask: Blocks, mesh: MeshCase, axes: Axes) -> Blocks:
        counts = all_reduce(per_device(mask, mesh).sum(axis=-1), mesh, axes)
        return np.maximum(counts, 1)  # of nothing the sum is 0, by whatever it is divided


def per_device(blocks: Blocks, mesh: MeshCase) -> Blocks:
    """The elements of every device in a row: `[*mesh.sizes, n]`."""
    return blocks.reshape(*mesh.sizes, int(np.prod(blocks.shape[len(mesh.sizes) :])))


masked_mean = MaskedMean()
