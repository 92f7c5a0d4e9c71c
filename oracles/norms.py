"""Norms of sharded arrays: the global norm, and RMS normalisation over all features of a token.

Operands are blocks `[*mesh.sizes, *block]`.
"""

import numpy as np

from shardproof.oracles.collectives import Axes, Blocks, Operands, all_reduce
from shardproof.oracles.dtypes import widen
from shardproof.oracles.mesh import MeshCase


class GlobalNorm:
    """`x [M_Y, N]` to a scalar that all participants hold; its gradient at zero is zero."""

    def value(self, operands: Operands, mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """The square root of the sum of the squares of all participants' elements."""
        (x,) = widen(operands)
        with np.errstate(invalid="ignore", over="ignore"):
            return [np.sqrt(total(x * x, mesh, axes))]

    def pushforward(self, operands: Operands, tangents: Operands, mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """The inner product of x and its tangent, by the norm."""
        (x,), (dx,) = widen(operands), widen(tangents)
        with np.errstate(invalid="ignore", over="ignore"):
            return [by_norm(total(x * dx, mesh, axes), self.value(operands, mesh, axes)[0])]

    def pullback(self, operands: Operands, cotangents: Operands, mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """X by the norm, times the sum of all participants' cotangents."""
        (x,), (ct,) = widen(operands), widen(cotangents)
        with np.errstate(invalid="ignore", over="ignore"):
            factor = by_norm(all_reduce(ct, mesh, axes), self.value(operands, mesh, axes)[0])
            return [x * factor.reshape(*mesh.sizes, *(1,) * (x.ndim - len(mesh.sizes)))]


class RmsNorm:
    """`x [T, D_Y]`, `scale [D_Y]` to `[T, D_Y]`: `x / sqrt(mean(x^2) + epsilon) * scale`, the mean over all of D."""

    def value(self, operands: Operands, mesh: MeshCase, axes: Axes, *, epsilon: float) -> list[Blocks]:
        """Every feature by the root of its token's mean square, times its scale."""
        x, scale = widen(operands)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            return [x / self.root(x, mesh, axes, epsilon) * per_feature(scale, x, mesh)]

    def pushforward(
        self, operands: Operands, tangents: Operands, mesh: MeshCase, axes: Axes, *, epsilon: float
    ) -> list[Blocks]:
        """The quotient rule, with r^2 = mean(x^2) + epsilon and so r dr = mean(x dx)."""
        (x, scale), (dx, dscale) = widen(operands), widen(tangents)
        s, ds = per_feature(scale, x, mesh), per_feature(dscale, x, mesh)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            r = self.root(x, mesh, axes, epsilon)
            dr = self.mean(x * dx, mesh, axes) / r
            return [(dx / r - x * dr / r**2) * s + x / r * ds]

    def pullback(
        self, operands: Operands, cotangents: Operands, mesh: MeshCase, axes: Axes, *, epsilon: float
    ) -> list[Blocks]:
        """For x `g / r - x mean(g x) / r^3`, g = cotangent times scale; for scale `ct x / r`, over all tokens."""
        (x, scale), (ct,) = widen(operands), widen(cotangents)
        tokens = tuple(range(len(mesh.sizes), x.ndim - 1))
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            r = self.root(x, mesh, axes, epsilon)
            g = ct * per_feature(scale, x, mesh)
            return [g / r - x * self.mean(g * x, mesh, axes) / r**3, (ct * x / r).sum(axis=tokens)]

    def root(self, x: Blocks, mesh: MeshCase, axes: Axes, epsilon: float) -> Blocks:
        """The root of the mean square of each token, of its features on all participants: `[*mesh.sizes, T, 1]`."""
        return np.sqrt(self.mean(x * x, mesh, axes) + epsilon)

    def mean(self, x: Blocks, mesh: MeshCase, axes: Axes) -> Blocks:
        """The mean over all features of all participants, for each token: `[*mesh.sizes, T, 1]`."""
        features = max(1, x.shape[-1] * mesh.axis_size(axes))
        return all_reduce(x.sum(axis=-1, keepdims=True), mesh, axes) / features


def total(x: Blocks, mesh: MeshCase, axes: Axes) -> Blocks:
    """The sum of all elements of all participants: `[*mesh.sizes]`."""
    return all_reduce(x.sum(axis=tuple(range(len(mesh.sizes), x.ndim))), mesh, axes)


def by_norm(x: Blocks, norm: Blocks) -> Blocks:
    """The quotient by a norm; by 0 it is 0."""
    return np.where(norm == 0, 0, x / np.where(norm == 0, 1, norm))


def per_feature(scale: Blocks, x: Blocks, mesh: MeshCase) -> Blocks:
    """The scale of every feature, beside the tokens of x."""
    if scale.shape[-1:] != x.shape[-1:]:
        raise ValueError(f"scale: {scale.shape[-1]} numbers: expected one for each of {x.shape[-1]} features")
    between = (1,) * (x.ndim - len(mesh.sizes) - 1)
    return scale.reshape(*mesh.sizes, *between, scale.shape[-1])


global_norm = GlobalNorm()
rms_norm = RmsNorm()
