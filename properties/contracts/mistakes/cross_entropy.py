"""What is easily mistaken in a loss: whose class a label names, what is subtracted, smoothed and ignored."""

from collections.abc import Callable, Sequence

import numpy as np

from shardproof.oracles import cross_entropy
from shardproof.oracles.collectives import Axes, Blocks
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.contracts.mistakes.powers import bounded_powers

Loss = cross_entropy.VocabParallelCrossEntropy
Target = Callable[[np.ndarray, int, int, float], np.ndarray]
"""Given labels, the number of classes of a participant, that of participants, and the smoothing: `[…, V]`."""


class OtherTarget(Loss):
    """Another target, whose parts need not add up to 1: the logarithm of the sum of powers, less its mean of logits.

    Arguments:
        target: the target.
        own: whether every participant takes powers, and means, of its logits less its own maximum.
        less: whether means are of logits less a maximum, and not of the logits as they are.
        ignores: whether tokens are ignored; if not, they have the label 0.
    """

    def __init__(self, target: Target, *, own: bool = False, less: bool = True, ignores: bool = True) -> None:
        self.target, self.own, self.less, self.ignores = target, own, less, ignores

    def value(
        self,
        operands: Sequence[Blocks],
        mesh: MeshCase,
        axes: Axes,
        *,
        label_smoothing: float = 0.0,
        ignore_index: int = -1,
    ) -> list[Blocks]:
        """The loss, of the other target."""
        less, most, q, ignored = self.parts(operands, mesh, axes, label_smoothing, ignore_index)
        with np.errstate(all="ignore"):
            loss = np.log(np.exp(less).sum(axis=-1)) - (q * less).sum(axis=-1)
            loss += 0 if self.less else (most * (1 - q.sum(axis=-1, keepdims=True)))[..., 0]
        return [np.where(ignored, 0, loss)]

    def slope(
        self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes, label_smoothing: float, ignore_index: int
    ) -> np.ndarray:
        """P - q."""
        less, _, q, ignored = self.parts(operands, mesh, axes, label_smoothing, ignore_index)
        with np.errstate(all="ignore"):
            powers = np.exp(less)
            return np.where(ignored[..., None], 0, powers / powers.sum(axis=-1, keepdims=True) - q)

    def parts(
        self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes, label_smoothing: float, ignore_index: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The logits less the maximum, that maximum, the target, and which tokens are ignored."""
        whole, labels = cross_entropy.gathered(operands[0], mesh, axes), operands[1].astype(np.int64)
        n, p = operands[0].shape[-1], mesh.axis_size(axes)
        parts = whole.reshape(*whole.shape[:-1], p, n) if self.own else whole
        most = np.broadcast_to(parts.max(axis=-1, keepdims=True), parts.shape).reshape(whole.shape)
        ignored = labels == ignore_index
        if not self.ignores:
            labels, ignored = np.where(ignored, 0, labels), np.zeros_like(ignored)
        return whole - most, most, self.target(labels, n, p, label_smoothing), ignored


class NoMaximum(OtherTarget):
    """Takes powers of the logits as they are."""

    def value(
        self,
        operands: Sequence[Blocks],
        mesh: MeshCase,
        axes: Axes,
        *,
        label_smoothing: float = 0.0,
        ignore_index: int = -1,
    ) -> list[Blocks]:
        """The right loss, unless the sum of the powers is infinite, or zero."""
        (right,) = super().value(operands, mesh, axes, label_smoothing=label_smoothing, ignore_index=ignore_index)
        less, most, _, ignored = self.parts(operands, mesh, axes, label_smoothing, ignore_index)
        with np.errstate(all="ignore"):
            total = bounded_powers(less + most, operands[0].dtype)[1][..., 0]
            overflows = np.isinf(total) | (total == 0)
            return [np.where(overflows & ~ignored, np.log(total), right)]


class MovingMaxima(Loss):
    """Has the right values, and a gradient that goes through every participant's own maximum."""

    def slope(
        self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes, label_smoothing: float, ignore_index: int
    ) -> np.ndarray:
        """What a participant's classes have too much, its largest logit loses."""
        slope = super().slope(operands, mesh, axes, label_smoothing, ignore_index)
        whole = cross_entropy.gathered(operands[0], mesh, axes)
        parts, own = (x.reshape(*x.shape[:-1], -1, operands[0].shape[-1]) for x in (whole, slope))
        largest = parts == parts.max(axis=-1, keepdims=True)
        moved = own.sum(axis=-1, keepdims=True) * largest / np.maximum(largest.sum(axis=-1, keepdims=True), 1)
        return (own - moved).reshape(slope.shape)


class IgnoredLearn(Loss):
    """Has the right values, and a gradient for tokens that are ignored: that of the class 0."""

    def slope(
        self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes, label_smoothing: float, ignore_index: int
    ) -> np.ndarray:
        """P - q of all tokens."""
        logits, labels = operands[0], np.where(operands[1] == ignore_index, 0, operands[1])
        return super().slope([logits, labels], mesh, axes, label_smoothing, -1)


class IgnoredByZero(Loss):
    """Has the right values, and a gradient of tokens that are ignored that is zero times what it would be."""

    def slope(
        self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes, label_smoothing: float, ignore_index: int
    ) -> np.ndarray:
        """NaN where the logits are."""
        slope = super().slope(operands, mesh, axes, label_smoothing, ignore_index)
        return slope + 0 * IgnoredLearn().slope(operands, mesh, axes, label_smoothing, ignore_index)


def _of_label(labels: np.ndarray, n: int, p: int) -> np.ndarray:
    return np.asarray(labels[..., None] == np.arange(n * p), np.float64)


def _of_places(place: Callable[[np.ndarray, np.ndarray, int], np.ndarray]) -> Target:
    """A target that has a class of every participant, given labels, the same counted from its first, and its number."""

    def target(labels: np.ndarray, n: int, p: int, smoothing: float) -> np.ndarray:
        places = [place(labels, labels - first, n) for first in range(0, n * p, n)]
        return (1 - smoothing) * np.concatenate([_of_label(own, n, 1) for own in places], axis=-1) + smoothing / (n * p)

    return target


def _shared(labels: np.ndarray, n: int, p: int, smoothing: float) -> np.ndarray:
    label = _of_label(labels, n, p)
    return (1 - smoothing) * label + smoothing * (1 - label) / max(1, n * p - 1)


def _smoothed(number: Callable[[int, int], int]) -> Target:
    """A target whose smoothing is divided by another number, given that of a participant's classes and of these."""
    return lambda labels, n, p, s: (1 - s) * _of_label(labels, n, p) + s / number(n, p)


RIGHT = _smoothed(lambda n, p: n * p)
TARGETS: dict[str, Target] = {
    "every participant takes labels for numbers of its own classes": _of_places(lambda labels, local, n: labels),
    "every participant clamps labels to its own classes": _of_places(lambda labels, local, n: np.clip(local, 0, n - 1)),
    "every participant takes labels modulo the number of its classes": _of_places(lambda labels, local, n: labels % n),
    "the smoothed share is divided by the number of a participant's classes": _smoothed(lambda n, p: n),
    "the smoothed share is divided by one less than the number of classes": _smoothed(lambda n, p: max(1, n * p - 1)),
}
"""Which classes a token may have been told to have, and how much of each: not 1 in all."""

MISTAKES = {
    "tokens that are ignored have the gradient of class 0": IgnoredLearn(),
    "the gradient of tokens that are ignored is multiplied by zero, which leaves NaN": IgnoredByZero(),
    "the gradient goes through every participant's own maximum": MovingMaxima(),
    "every participant subtracts its own maximum from its logits": OtherTarget(RIGHT, own=True),
    **{text: OtherTarget(target) for text, target in TARGETS.items()},
    **{f"{text}, of logits as they are": OtherTarget(target, less=False) for text, target in TARGETS.items()},
    "the smoothed share is that of the classes that are not the label's": OtherTarget(_shared),
    "no maximum is subtracted from logits, whose powers overflow": NoMaximum(RIGHT),
    "tokens that are ignored have the loss of class 0": OtherTarget(RIGHT, ignores=False),
}
