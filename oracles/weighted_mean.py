"""What a weighted mean means: that of all elements of all participants, each of which counts by its weight.

Operands are blocks `values [*mesh.sizes, *block]` and `weights`, of the same shape and not negative. Derivatives are
exact, in `wide` floats, and their transpose is taken over all blocks of all devices: each has its own cotangent (see
`oracles.transposes`). The weights have none.
"""

from collections.abc import Sequence

import numpy as np

from shardproof.oracles.collectives import Axes, Blocks, all_reduce
from shardproof.oracles.dtypes import is_float, wide
from shardproof.oracles.mesh import MeshCase


class WeightedMean:
    """`values [T_Y]`, `weights [T_Y]` to a scalar that all participants hold; 0 where all weights are."""

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """The sum of the products with the weights by the sum of the weights.

        Raises:
            ValueError: for weights that are no floats, of another shape than the values, or a negative one.
        """
        values, weights = operands
        if not is_float(weights.dtype):
            raise ValueError(f"weights: {weights.dtype}: expected a floating dtype")
        if weights.shape != values.shape or not (weights.astype(np.float64) >= 0).all():
            raise ValueError(f"weights: {list(weights.shape)}: expected {list(values.shape)}, none of them negative")
        factors = weights.astype(wide(weights.dtype))
        products = np.where(factors > 0, values.astype(wide(values.dtype)), 0) * factors
        return [all_reduce(of_each_device(products, mesh), mesh, axes) / self.total(factors, mesh, axes)]

    def pushforward(
        self, operands: Sequence[Blocks], tangents: Sequence[Blocks | None], mesh: MeshCase, axes: Axes
    ) -> list[Blocks]:
        """The mean is linear in the values: that of their tangents."""
        return self.value([np.asarray(tangents[0]), operands[1]], mesh, axes)

    def pullback(
        self, operands: Sequence[Blocks], cotangents: Sequence[Blocks], mesh: MeshCase, axes: Axes
    ) -> list[Blocks | None]:
        """Every element gets its weight's share of all participants' cotangents."""
        (_, weights), (ct,) = operands, cotangents
        factors = weights.astype(wide(weights.dtype))
        share = all_reduce(ct.astype(wide(ct.dtype)), mesh, axes) / self.total(factors, mesh, axes)
        return [factors * share.reshape(*mesh.sizes, *(1,) * (weights.ndim - len(mesh.sizes))), None]

    def total(self, factors: Blocks, mesh: MeshCase, axes: Axes) -> Blocks:
        """The sum of all weights, and 1 where they are 0: of nothing the sum is 0, by whatever it is divided."""
        total = all_reduce(of_each_device(factors, mesh), mesh, axes)
        return np.where(total == 0, 1, total)


def of_each_device(blocks: Blocks, mesh: MeshCase) -> Blocks:
    """The sum of every device's elements: `[*mesh.sizes]`."""
    return blocks.reshape(*mesh.sizes, -1).sum(axis=-1) if blocks.size else np.zeros(mesh.sizes, blocks.dtype)


weighted_mean = WeightedMean()
