"""Steps of optimisers, gradient descent with momentum and Adam, in float64 and on a single device.

Parameters, gradients and moments are lists of arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

Arrays = Sequence[np.ndarray]


@dataclass(frozen=True)
class Kept:
    """The state of an optimiser: the number of steps, and its moments, one list for each kind."""

    steps: int = 0
    moments: tuple[list[np.ndarray], ...] = ()


@dataclass(frozen=True)
class GradientDescent:
    """Gradient descent with momentum (Polyak 1964; Sutskever et al. 2013, equation 1)."""

    learning_rate: float  # by what a gradient is multiplied
    momentum: float = 0.0  # the part of the velocity that is left after a step, in [0, 1)

    def start(self, parameters: Arrays) -> Kept:
        """At rest."""
        return Kept(moments=(zeros_like(parameters),))

    def step(self, parameters: Arrays, gradients: Arrays, kept: Kept) -> tuple[list[np.ndarray], Kept]:
        """`v <- momentum v - learning_rate g`, then `w <- w + v`."""
        (old,) = kept.moments
        velocity = [self.momentum * v - self.learning_rate * wide(g) for v, g in zip(old, gradients, strict=True)]
        return [wide(w) + v for w, v in zip(parameters, velocity, strict=True)], Kept(kept.steps + 1, (velocity,))


@dataclass(frozen=True)
class Adam:
    """Adaptive moment estimation (Kingma and Ba 2015, algorithm 1)."""

    learning_rate: float  # the paper's alpha
    decays: tuple[float, float] = field(default=(0.9, 0.999))  # the paper's beta_1 and beta_2, each in [0, 1)
    epsilon: float = 1e-8  # what is added to the root of the second moment

    def start(self, parameters: Arrays) -> Kept:
        """Both moments are zero, and no step was taken."""
        return Kept(moments=(zeros_like(parameters), zeros_like(parameters)))

    def step(self, parameters: Arrays, gradients: Arrays, kept: Kept) -> tuple[list[np.ndarray], Kept]:
        """`w <- w - alpha m' / (sqrt(v') + epsilon)`, of the moments m and v freed of their bias towards zero."""
        (b1, b2), t = self.decays, kept.steps + 1
        g = [wide(gradient) for gradient in gradients]
        m = [b1 * old + (1 - b1) * new for old, new in zip(kept.moments[0], g, strict=True)]
        v = [b2 * old + (1 - b2) * new**2 for old, new in zip(kept.moments[1], g, strict=True)]
        unbiased = [(first / (1 - b1**t), second / (1 - b2**t)) for first, second in zip(m, v, strict=True)]
        moved = [
            wide(w) - self.learning_rate * first / (np.sqrt(second) + self.epsilon)
            for w, (first, second) in zip(parameters, unbiased, strict=True)
        ]
        return moved, Kept(t, (m, v))


Optimiser = GradientDescent | Adam


def wide(x: np.ndarray) -> np.ndarray:
    """The array in float64."""
    return np.asarray(x, np.float64)


def zeros_like(arrays: Arrays) -> list[np.ndarray]:
    """Zeros in float64, of the same shapes."""
    return [np.zeros(np.shape(x)) for x in arrays]
