"""The mean over all participants' elements that a mask counts.

Operands are blocks `values [*mesh.sizes, *block]` and a bool `mask` of the same shape, True where an element counts.
"""

import numpy as np

from shardproof.oracles.collectives import Axes, Blocks, Operands, Tangents, all_reduce
from shardproof.oracles.dtypes import widen
from shardproof.oracles.mesh import MeshCase


class MaskedMean:
    """`values [T_Y]`, `mask [T_Y]` to a scalar that all participants hold; 0 where everything is masked."""

    def value(self, operands: Operands, mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """The sum of the elements that count by their number."""
        values, mask = operands
        if mask.shape != values.shape or mask.dtype != np.bool_:
            raise ValueError(f"mask: {mask.dtype}{list(mask.shape)}: expected bool{list(values.shape)}")
        (numbers,) = widen([values])
        with np.errstate(invalid="ignore"):  # infinities of both signs
            total = all_reduce(per_device(np.where(mask, numbers, 0), mesh).sum(axis=-1), mesh, axes)
        return [total / self.count(mask, mesh, axes)]

    def pushforward(self, operands: Operands, tangents: Tangents, mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """The mean is linear in the values: that of their tangents."""
        return self.value([tangents[0], operands[1]], mesh, axes)

    def pullback(self, operands: Operands, cotangents: Tangents, mesh: MeshCase, axes: Axes) -> list[Blocks | None]:
        """Every element that counts gets its share of all participants' cotangents."""
        (_, mask), (ct,) = operands, widen(cotangents)
        share = all_reduce(ct, mesh, axes) / self.count(mask, mesh, axes)
        return [np.where(mask, share.reshape(*mesh.sizes, *(1,) * (mask.ndim - len(mesh.sizes))), 0), None]

    def count(self, mask: Blocks, mesh: MeshCase, axes: Axes) -> Blocks:
        """The number of elements that count, and 1 where none does, to divide a sum of 0 by."""
        return np.maximum(all_reduce(per_device(mask, mesh).sum(axis=-1), mesh, axes), 1)


def per_device(blocks: Blocks, mesh: MeshCase) -> Blocks:
    """The elements of every device in a row: `[*mesh.sizes, n]`."""
    return blocks.reshape(*mesh.sizes, int(np.prod(blocks.shape[len(mesh.sizes) :])))


masked_mean = MaskedMean()
