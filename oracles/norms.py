"""Norms of sharded arrays: the global norm, and RMS normalisation over all features of a token."""

import numpy as np

from shardproof.oracles.softmax import is_first_largest
from shardproof.oracles.whole import Arrays, OfParticipants


class GlobalNorm(OfParticipants):
    """`x [M_Y, N]` to a scalar that all participants hold; its gradient at zero is zero."""

    sharded = (-1,)

    def result(self, x: np.ndarray) -> np.ndarray:
        """The square root of the sum of the squares of all elements."""
        return np.sqrt(total(x * x))

    def tangent(self, wholes: Arrays, tangents: Arrays) -> np.ndarray:
        """The inner product of x and its tangent, by the norm."""
        (x,), (dx,) = wholes, tangents
        return by_norm(total(x * dx), self.result(x))

    def cotangents(self, wholes: Arrays, cotangent: np.ndarray) -> list[np.ndarray]:
        """X by the norm, times the cotangent."""
        (x,) = wholes
        factor = by_norm(cotangent, self.result(x))
        return [x * factor.reshape(*factor.shape, *[1] * (x.ndim - 2))]


class RmsNorm(OfParticipants):
    """`x [T, D_Y]`, `scale [D_Y]` to `[T, D_Y]`: `x / sqrt(mean(x^2) + epsilon) * scale`, the mean over all of D."""

    sharded, scattered = (-1, -1), -1

    def result(self, x: np.ndarray, scale: np.ndarray, *, epsilon: float) -> np.ndarray:
        """Every feature by the root of its token's mean square, times its scale."""
        return x / self.root(x, epsilon) * per_feature(scale, x)

    def tangent(self, wholes: Arrays, tangents: Arrays, *, epsilon: float) -> np.ndarray:
        """The quotient rule, with r^2 = mean(x^2) + epsilon and so r dr = mean(x dx)."""
        (x, scale), (dx, dscale) = wholes, tangents
        return self.slope(x, dx, epsilon) * per_feature(scale, x) + x / self.root(x, epsilon) * per_feature(dscale, x)

    def cotangents(self, wholes: Arrays, cotangent: np.ndarray, *, epsilon: float) -> list[np.ndarray]:
        """For x `g / r - x mean(g x) / r^3`, g = cotangent times scale; for scale `ct x / r`, over all tokens."""
        x, scale = wholes
        of_scale = (cotangent * x / self.root(x, epsilon)).sum(axis=tuple(range(2, x.ndim - 1)))
        return [self.slope(x, cotangent * per_feature(scale, x), epsilon), of_scale]

    def slope(self, x: np.ndarray, g: np.ndarray, epsilon: float) -> np.ndarray:
        """`g / r - x mean(g x) / r^3`, as `(g r^2 - x mean(g x)) / r^3`; of its terms the largest feature's cancel."""
        largest, r = is_first_largest(np.abs(x)), self.root(x, epsilon)
        of_squares, of_products = (
            np.where(largest, self.mean(np.where(largest, 0, y)), self.mean(y)) for y in (x * x, g * x)
        )
        return np.asarray((g * (of_squares + epsilon) - x * of_products) / r**3)

    def root(self, x: np.ndarray, epsilon: float) -> np.ndarray:
        """The root of the mean square of each token: `[…, T, 1]`."""
        return np.sqrt(self.mean(x * x) + epsilon)

    def mean(self, x: np.ndarray) -> np.ndarray:
        """The mean over all features, for each token: `[…, T, 1]`."""
        return np.asarray(x.sum(axis=-1, keepdims=True) / max(1, x.shape[-1]))


def total(x: np.ndarray) -> np.ndarray:
    """The sum of all elements of a whole array."""
    return np.asarray(x.sum(axis=tuple(range(2, x.ndim))))


def by_norm(x: np.ndarray, norm: np.ndarray) -> np.ndarray:
    """The quotient by a norm; by 0 it is 0."""
    return np.where(norm == 0, 0, x / np.where(norm == 0, 1, norm))


def per_feature(scale: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The scale of every feature, beside the tokens of x."""
    if scale.shape[-1:] != x.shape[-1:]:
        raise ValueError(f"scale: {scale.shape[-1]} numbers: expected one for each of {x.shape[-1]} features")
    return scale.reshape(*scale.shape[:2], *[1] * (x.ndim - 3), scale.shape[-1])


global_norm = GlobalNorm()
rms_norm = RmsNorm()
