"""One expert on one token, with its derivatives: a matrix, or a gated MLP.

The weights of an expert are a list of arrays: `[W [D, F]]`, or `[W_gate [D, H], W_up [D, H], W_down [H, F]]`.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Shaped

Vector = Shaped[np.ndarray, "_"]
Weights = Sequence[np.ndarray]


class MatrixExpert:
    """`x [D]` to `x W [F]`."""

    def value(self, x: Vector, weights: Weights) -> Vector:
        """The product."""
        (w,) = weights
        return x @ w

    def pushforward(self, x: Vector, weights: Weights, dx: Vector, dweights: Weights) -> Vector:
        """It is bilinear."""
        (w,), (dw,) = weights, dweights
        return dx @ w + x @ dw

    def pullback(self, x: Vector, weights: Weights, ct: Vector) -> tuple[Vector, list[np.ndarray]]:
        """The cotangents of the token and of the weights."""
        (w,) = weights
        return w @ ct, [np.outer(x, ct)]


class GatedExpert:
    """`x [D]` to `(silu(x W_gate) * (x W_up)) W_down [F]`, with `silu(u) = u / (1 + exp(-u))` (Shazeer 2020)."""

    def value(self, x: Vector, weights: Weights) -> Vector:
        """The product of the hidden units, by the last matrix."""
        gate, up, down = weights
        return (silu(x @ gate) * (x @ up)) @ down

    def pushforward(self, x: Vector, weights: Weights, dx: Vector, dweights: Weights) -> Vector:
        """The product rule, three times."""
        (gate, up, down), (dgate, dup, ddown) = weights, dweights
        u, v = x @ gate, x @ up
        du, dv = dx @ gate + x @ dgate, dx @ up + x @ dup
        hidden = silu(u) * v
        return (silu_slope(u) * du * v + silu(u) * dv) @ down + hidden @ ddown

    def pullback(self, x: Vector, weights: Weights, ct: Vector) -> tuple[Vector, list[np.ndarray]]:
        """The cotangents of the token and of the weights."""
        gate, up, down = weights
        u, v = x @ gate, x @ up
        of_hidden = down @ ct
        of_u, of_v = of_hidden * v * silu_slope(u), of_hidden * silu(u)
        return gate @ of_u + up @ of_v, [np.outer(x, of_u), np.outer(x, of_v), np.outer(silu(u) * v, ct)]


def sigmoid(u: Vector) -> Vector:
    """`1 / (1 + exp(-u))`."""
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-u)))


def silu(u: Vector) -> Vector:
    """`u sigmoid(u)`."""
    return u * sigmoid(u)


def silu_slope(u: Vector) -> Vector:
    """The derivative of silu: `s + u s (1 - s)`, with s the sigmoid."""
    s = sigmoid(u)
    return s + u * s * (1 - s)


Expert = MatrixExpert | GatedExpert
MATRIX = MatrixExpert()
GATED = GatedExpert()
EXPERTS: Mapping[int, Expert] = {1: MATRIX, 3: GATED}
"""The kinds of experts, by the number of arrays of their weights."""
