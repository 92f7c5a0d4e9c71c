"""The cross-entropy of sharded classes: that of every token's logits of all classes with its target.

The target of a token is a distribution q over all V classes: `1 - s` of its label, and `s / V` of every class; the loss
is `sum(q * -log p)`, with p the softmax of the logits.
"""

from typing import Any

import numpy as np

from shardproof.oracles.dtypes import widen
from shardproof.oracles.layout import Axes, Blocks, Operands, Tangents
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.softmax import is_first_largest, log_softmax, softmax
from shardproof.oracles.whole import Arrays, OfParticipants


class VocabParallelCrossEntropy(OfParticipants):
    """`logits [T, V_Y]`, `labels [T]`, integers, to `[T]`, which is the same on all participants if the labels are.

    A token whose label is `ignore_index` has the loss 0, whatever its logits are, and one whose label is any other
    outside [0, V) the loss NaN: both are constants, so that their gradients are zero.
    """

    sharded = (-1, None)

    def result(
        self, logits: np.ndarray, labels: np.ndarray, *, label_smoothing: float = 0.0, ignore_index: int = -1
    ) -> np.ndarray:
        """The mean of `-log p` over a token's target, unless it is ignored."""
        log_p, q = tokens(logits, labels, label_smoothing)
        loss = np.where(unknown(labels, logits), np.nan, -(q * log_p).sum(axis=-1))
        return np.where(labels == ignore_index, 0, loss)

    def tangent(self, wholes: Arrays, tangents: Arrays, **options: Any) -> np.ndarray:
        """The inner product of p - q with the tangent of all classes."""
        return np.asarray((self.slope(*wholes, **options) * tangents[0]).sum(axis=-1))

    def cotangents(self, wholes: Arrays, cotangent: np.ndarray, **options: Any) -> list[np.ndarray | None]:
        """P - q times the cotangent."""
        return [self.slope(*wholes, **options) * cotangent[..., None], None]

    def slope(
        self, logits: np.ndarray, labels: np.ndarray, *, label_smoothing: float = 0.0, ignore_index: int = -1
    ) -> np.ndarray:
        """The derivative of every token's loss by all logits: p - q, and 0 where the loss is a constant."""
        _, q = tokens(logits, labels, label_smoothing)
        off = softmax(logits) - q  # of which the sum is zero
        largest = is_first_largest(logits)
        off = np.where(largest, -np.where(largest, 0, off).sum(axis=-1, keepdims=True), off)
        constant = (labels == ignore_index) | unknown(labels, logits)
        return np.where(constant[..., None], 0, off)


def tokens(logits: np.ndarray, labels: np.ndarray, label_smoothing: float) -> tuple[np.ndarray, np.ndarray]:
    """The logarithm of the softmax of every token, and its target: `[…, V]` both."""
    if labels.dtype.kind not in "iu" or labels.shape[2:] != logits.shape[2:-1]:
        given = f"{list(labels.shape[2:])} of the kind {labels.dtype.kind!r}"
        raise ValueError(f"labels: {given}: expected integers {list(logits.shape[2:-1])}")
    smoothing, classes = logits.dtype.type(label_smoothing), logits.shape[-1]
    return log_softmax(logits), (1 - smoothing) * (labels[..., None] == np.arange(classes)) + smoothing / classes


def unknown(labels: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """True for labels of no class."""
    return (labels < 0) | (labels >= logits.shape[-1])


vocab_parallel_cross_entropy = VocabParallelCrossEntropy()


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
