"""Means over all participants' elements, each of which counts by its weight; a mask is a weight of 0 or 1.

Operands are blocks `values [*mesh.sizes, *block]` and, of the same shape, `weights` that are not negative, or a bool
`mask` that is True where an element counts.
"""

import numpy as np

from shardproof.oracles.collectives import Axes, Blocks, Operands, Tangents, all_reduce
from shardproof.oracles.dtypes import is_float, widen
from shardproof.oracles.mesh import MeshCase


class WeightedMean:
    """`values [T_Y]`, `weights [T_Y]` to a scalar that all participants hold; 0 where all weights are."""

    def check(self, values: Blocks, weights: Blocks) -> None:
        """The weights fit the values."""
        if not is_float(weights.dtype):
            raise ValueError(f"weights: {weights.dtype}: expected a floating dtype")
        if weights.shape != values.shape or not (weights.astype(np.float64) >= 0).all():
            raise ValueError(f"weights: {list(weights.shape)}: expected {list(values.shape)}, none of them negative")

    def value(self, operands: Operands, mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """The sum of the products with the weights by the sum of the weights."""
        values, weights = operands
        self.check(values, weights)
        numbers, factors = widen(operands)
        with np.errstate(invalid="ignore"):
            products = np.where(factors > 0, numbers, 0) * factors
            total = all_reduce(per_device(products, mesh).sum(axis=-1), mesh, axes)
        return [total / self.total(factors, mesh, axes)]

    def pushforward(self, operands: Operands, tangents: Tangents, mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """The mean is linear in the values: that of their tangents."""
        return self.value([tangents[0], operands[1]], mesh, axes)

    def pullback(self, operands: Operands, cotangents: Tangents, mesh: MeshCase, axes: Axes) -> list[Blocks | None]:
        """Every element gets its weight's share of all participants' cotangents."""
        (_, factors), (ct,) = widen(operands), widen(cotangents)
        share = all_reduce(ct, mesh, axes) / self.total(factors, mesh, axes)
        aligned = share.reshape(*mesh.sizes, *(1,) * (factors.ndim - len(mesh.sizes)))
        return [np.where(factors > 0, factors * aligned, 0), None]

    def total(self, factors: Blocks, mesh: MeshCase, axes: Axes) -> Blocks:
        """The sum of all weights, and 1 where it is 0, to divide a sum of 0 by."""
        total = all_reduce(per_device(factors, mesh).sum(axis=-1), mesh, axes)
        return np.where(total == 0, 1, total)


class MaskedMean(WeightedMean):
    """`values [T_Y]`, `mask [T_Y]` to a scalar that all participants hold; 0 where everything is masked."""

    def check(self, values: Blocks, weights: Blocks) -> None:
        """The mask fits the values."""
        if weights.shape != values.shape or weights.dtype != np.bool_:
            raise ValueError(f"mask: {weights.dtype}{list(weights.shape)}: expected bool{list(values.shape)}")


def per_device(blocks: Blocks, mesh: MeshCase) -> Blocks:
    """The elements of every device in a row: `[*mesh.sizes, n]`."""
    return blocks.reshape(*mesh.sizes, int(np.prod(blocks.shape[len(mesh.sizes) :])))


weighted_mean = WeightedMean()
masked_mean = MaskedMean()
