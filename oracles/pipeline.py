"""A pipeline of layers: all layers `tanh(x W)`, one after the other, in logical order.

Of p participants, each with blocks of v layers `[v D, D]`, the i-th has the layers i, p + i, 2 p + i and so on.
"""

import numpy as np

from shardproof.oracles.dtypes import is_float
from shardproof.oracles.whole import Arrays, OfParticipants


class Pipeline(OfParticipants):
    """`weights [D_Y, D]`, `x [M, B, D]` to `[M, B, D]`, which is the same on all participants if x is."""

    sharded = (-2, None)

    def result(self, weights: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Every participant's x, through the layers of all."""
        return passed(weights, x)[-1]

    def tangent(self, wholes: Arrays, tangents: Arrays) -> np.ndarray:
        """The chain rule, layer by layer: `dy = tanh'(x W) (dx W + x dW)`, and tanh' is `1 - y^2`."""
        ys, dx = passed(*wholes), tangents[1]
        for x, y, layer, change in zip(ys, ys[1:], layers(*wholes), layers(*tangents), strict=False):
            dx = (1 - y**2) * (dx @ layer + x @ change)
        return dx

    def cotangents(self, wholes: Arrays, cotangent: np.ndarray) -> list[np.ndarray]:
        """The chain rule, from the last layer back: `g = tanh'(x W) ct`, of x it is `g W^T`, and of W `x^T g`."""
        ys, ct, found = passed(*wholes), cotangent, []
        for x, y, layer in reversed(list(zip(ys, ys[1:], layers(*wholes), strict=False))):
            g = (1 - y**2) * ct
            found.append((x.swapaxes(-1, -2) @ g).sum(axis=2))  # over microbatches
            ct = g @ layer.swapaxes(-1, -2)
        by_layer, (p, others, *_, features) = np.stack(found[::-1], axis=2), ct.shape
        by_participant = by_layer.reshape(p, others, -1, p, features, features).swapaxes(2, 3)
        return [by_participant.reshape(p, others, -1, features), ct]


def passed(weights: np.ndarray, x: np.ndarray) -> list[np.ndarray]:
    """X, and what each layer makes of it."""
    if x.ndim != 5:
        raise ValueError(f"x: {list(x.shape[2:])}: expected blocks of microbatches, examples and features")
    if not is_float(weights.dtype):
        raise ValueError(f"weights: {weights.dtype}: expected a floating dtype")
    found = [x]
    for layer in layers(weights, x):
        found.append(np.tanh(found[-1] @ layer))
    return found


def layers(weights: np.ndarray, x: np.ndarray) -> list[np.ndarray]:
    """All layers, in turn: `[1, others, 1, D, D]` each."""
    (p, *_, features), (_, others, rows, columns) = x.shape, weights.shape
    if columns != features or rows // p % features:
        raise ValueError(f"weights: blocks of {rows // p} by {columns}: expected layers of {features} features")
    by_participant = weights.reshape(1, others, p, -1, features, features).swapaxes(2, 3)
    by_layer = by_participant.reshape(1, others, -1, 1, features, features)
    return [by_layer[:, :, n] for n in range(by_layer.shape[2])]


pipeline = Pipeline()
