"""The cross-entropy of a projection: that of the logits `x W`, of which every participant has some columns.

Operands are blocks `x [*mesh.sizes, T, D]`, `w [*mesh.sizes, D, V / p]` and `labels [*mesh.sizes, T]`, integers.
"""

from typing import Any

import numpy as np

from shardproof.oracles.collectives import Axes, Blocks, Operands, Tangents
from shardproof.oracles.cross_entropy import vocab_parallel_cross_entropy
from shardproof.oracles.dtypes import widen
from shardproof.oracles.mesh import MeshCase


class ProjectedCrossEntropy:
    """`x [T, D]`, `w [D, V_Y]`, `labels [T]` to `[T]`: the loss of the logits `x W`.

    A token whose label is `ignore_index` has the loss 0, and so has none of the derivatives that its row of x has.

    Further options of all methods are those of the loss of logits.
    """

    def value(self, operands: Operands, mesh: MeshCase, axes: Axes, **options: Any) -> list[Blocks]:
        """The loss of the products of every row of x with every column of W."""
        logits = [product(*factors(operands, options.get("ignore_index", -1))), operands[2]]
        return vocab_parallel_cross_entropy.value(logits, mesh, axes, **options)

    def pushforward(
        self, operands: Operands, tangents: Tangents, mesh: MeshCase, axes: Axes, **options: Any
    ) -> list[Blocks]:
        """By the product rule, `dx W + x dW` are the tangents of the logits."""
        index = options.get("ignore_index", -1)
        (x, w), (dx, dw) = factors(operands, index), factors([*tangents[:2], operands[2]], index)
        logits, along = [product(x, w), operands[2]], [product(dx, w) + product(x, dw), None]
        return vocab_parallel_cross_entropy.pushforward(logits, along, mesh, axes, **options)

    def pullback(
        self, operands: Operands, cotangents: Tangents, mesh: MeshCase, axes: Axes, **options: Any
    ) -> list[Blocks | None]:
        """With z the cotangents of the logits, `z W^T` is that of x, and `x^T z` that of W."""
        index = options.get("ignore_index", -1)
        x, w = factors(operands, index)
        logits = [product(x, w), operands[2]]
        z = np.asarray(vocab_parallel_cross_entropy.pullback(logits, cotangents, mesh, axes, **options)[0])
        of_x = product(z, w.swapaxes(-1, -2))
        return [np.where((operands[2] == index)[..., None], 0, of_x), product(x.swapaxes(-1, -2), z), None]


def factors(operands: Operands, ignore_index: int) -> tuple[Blocks, Blocks]:
    """X, of which rows that do not count are 0, and W, in doubles or wider."""
    x, w = widen(operands[:2])
    labels = operands[2]
    if labels.dtype.kind not in "iu" or labels.shape != x.shape[:-1]:
        raise ValueError(f"labels: {labels.dtype}{list(labels.shape)}: expected an integer for each row of x")
    if x.shape[-1] != w.shape[-2]:
        raise ValueError(f"w: {list(w.shape)}: expected a row for each column of x {list(x.shape)}")
    return np.where((operands[2] == ignore_index)[..., None], 0, x), w


def product(lhs: Blocks, rhs: Blocks) -> Blocks:
    """The products of every device's matrices."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.matmul(lhs, rhs)


projected_cross_entropy = ProjectedCrossEntropy()
