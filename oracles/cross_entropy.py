"""The cross-entropy of sharded classes: that of every token's logits of all classes with its target.

The target of a token is a distribution q over all V classes: `1 - s` of its label, and `s / V` of every class; the loss
is `sum(q * -log p)`, with p the softmax of the logits. Operands are blocks `logits [*mesh.sizes, …, V / p]` and `labels
[*mesh.sizes, …]`, integers.
"""

from typing import Any

import numpy as np

from shardproof.oracles.collectives import Axes, Blocks, Operands, Tangents, all_gather
from shardproof.oracles.dtypes import wide, widen
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.transposes import all_gather_transpose


class VocabParallelCrossEntropy:
    """`logits [T, V_Y]`, `labels [T]` to `[T]`, which is the same on all participants if the labels are.

    A token whose label is `ignore_index` has the loss 0, whatever its logits are, and one whose label is any other
    outside [0, V) the loss NaN: both are constants, so that their gradients are zero.
    """

    def value(
        self, operands: Operands, mesh: MeshCase, axes: Axes, *, label_smoothing: float = 0.0, ignore_index: int = -1
    ) -> list[Blocks]:
        """The mean of `-log p` over a token's target, unless it is ignored."""
        log_p, q = tokens(operands, mesh, axes, label_smoothing)
        with np.errstate(invalid="ignore", over="ignore"):
            loss = np.where(unknown(operands[1], log_p), np.nan, -(q * log_p).sum(axis=-1))
        return [np.where(operands[1] == ignore_index, 0, loss)]

    def pushforward(
        self, operands: Operands, tangents: Tangents, mesh: MeshCase, axes: Axes, **options: Any
    ) -> list[Blocks]:
        """The inner product of p - q with the tangent of all classes."""
        slope, tangent = self.slope(operands, mesh, axes, **options), gather_logits(tangents[0], mesh, axes)
        with np.errstate(invalid="ignore", over="ignore"):
            return [(slope * tangent).sum(axis=-1)]

    def pullback(
        self, operands: Operands, cotangents: Tangents, mesh: MeshCase, axes: Axes, **options: Any
    ) -> list[Blocks | None]:
        """P - q times the cotangent, of every participant's classes the sum over all participants' tokens."""
        slope, (ct,) = self.slope(operands, mesh, axes, **options), widen(cotangents)
        with np.errstate(invalid="ignore", over="ignore"):
            return [all_gather_transpose(slope * ct[..., None], mesh, axes, axis=-1, tiled=True), None]

    def slope(
        self, operands: Operands, mesh: MeshCase, axes: Axes, *, label_smoothing: float = 0.0, ignore_index: int = -1
    ) -> np.ndarray:
        """The derivative of every token's loss by all logits: p - q, and 0 where the loss is a constant."""
        labels, (log_p, q) = operands[1], tokens(operands, mesh, axes, label_smoothing)
        constant = (labels == ignore_index) | unknown(labels, log_p)
        with np.errstate(invalid="ignore", over="ignore"):
            odds = np.exp(log_p - log_p.max(axis=-1, keepdims=True))
            # exp(log_p) would be no 1/V where all logits are equal
            p = odds / odds.sum(axis=-1, keepdims=True)
        return np.where(constant[..., None], 0, p - q)


def gather_logits(logits: Blocks, mesh: MeshCase, axes: Axes) -> Blocks:
    """The logits of all classes on every device: `[*mesh.sizes, …, V]`."""
    return all_gather(logits.astype(wide(logits.dtype)), mesh, axes, axis=-1, tiled=True)


def tokens(operands: Operands, mesh: MeshCase, axes: Axes, label_smoothing: float) -> tuple[np.ndarray, np.ndarray]:
    """The logarithm of the softmax of every token, and its target: `[*mesh.sizes, …, V]` both."""
    logits, labels = operands
    if labels.dtype.kind not in "iu" or labels.shape != logits.shape[:-1]:
        raise ValueError(f"labels: {labels.dtype}{list(labels.shape)}: expected integers {list(logits.shape[:-1])}")
    whole = gather_logits(logits, mesh, axes)
    with np.errstate(invalid="ignore", over="ignore"):
        less = whole - whole.max(axis=-1, keepdims=True)
        log_p = less - np.log(np.exp(less).sum(axis=-1, keepdims=True))
    smoothing, classes = whole.dtype.type(label_smoothing), whole.shape[-1]
    return log_p, (1 - smoothing) * (labels[..., None] == np.arange(classes)) + smoothing / classes


def unknown(labels: Blocks, log_p: np.ndarray) -> np.ndarray:
    """True for labels of no class: `[*mesh.sizes, …]`."""
    return (labels < 0) | (labels >= log_p.shape[-1])


vocab_parallel_cross_entropy = VocabParallelCrossEntropy()
