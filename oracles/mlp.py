"""The loss of a multilayer perceptron, of whole arrays, and its derivatives in both modes, by hand.

Layer l of n computes `z_l = x_{l-1} W_l + b_l`, with x_0 the inputs and `x_l = max(z_l, 0)`; the outputs are z_n. The
loss is the mean over the B examples of the sums of the squares of `z_n - t`, with t the targets. The derivative of
`max(z, 0)` is 1 for z above 0, and 0 elsewhere.

Arrays are the leaves of `([(W_1, b_1), …, (W_n, b_n)], (inputs, targets))`, in this order.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from shardproof.oracles.dtypes import wide
from shardproof.oracles.whole import Arrays, Dtypes, OfWholes, Options, Tangents


class MlpLoss(OfWholes):
    """`W_l [D_{l-1}, D_l]`, `b_l [D_l]`, `inputs [B, D_0]`, `targets [B, D_n]` to a scalar."""

    generic = True

    def value(self, arrays: Arrays, dtypes: Dtypes, options: Options) -> list[np.ndarray]:
        """The mean of the examples' sums of squares."""
        layers, inputs, targets = parts(arrays)
        outputs = weighted_sums(layers, inputs)[-1]
        return [np.asarray(np.mean(np.sum((outputs - targets) ** 2, axis=1)))]

    def pushforward(self, arrays: Arrays, tangents: Tangents, dtypes: Dtypes, options: Options) -> list[np.ndarray]:
        """By the product rule, layer by layer: `dz = dx W + x dW + db`, and `dx = dz` where z is above 0."""
        layers, inputs, targets = parts(arrays)
        d_layers, d_inputs, d_targets = parts([tangents.get(i, np.zeros_like(a)) for i, a in enumerate(arrays)])
        z, dz = inputs, d_inputs
        x, dx = inputs, d_inputs
        for (w, b), (dw, db) in zip(layers, d_layers, strict=True):
            z, dz = x @ w + b, dx @ w + x @ dw + db
            x, dx = np.maximum(z, 0), np.where(z > 0, dz, 0)
        return [np.asarray(np.mean(np.sum(2 * (z - targets) * (dz - d_targets), axis=1)))]

    def pullback(
        self, arrays: Arrays, cotangents: Arrays, moving: Sequence[int], dtypes: Dtypes, options: Options
    ) -> list[np.ndarray]:
        """By the chain rule, from the last layer to the first.

        With c the cotangent of the loss, that of z_n is `2 c (z_n - t) / B`; that of W is `x^T` times that of z, that
        of b the sum of that of z over the examples, and that of x is that of z times `W^T`, which z before it has where
        it is above 0.
        """
        layers, inputs, targets = parts(arrays)
        sums = weighted_sums(layers, inputs)
        of_z = 2 * cotangents[0] * (sums[-1] - targets) / len(inputs)
        of_targets = -of_z
        of_layers: list[np.ndarray] = []
        for (w, _), before in zip(reversed(layers[1:]), reversed(sums[:-1]), strict=True):
            of_layers[:0] = [np.maximum(before, 0).T @ of_z, of_z.sum(axis=0)]
            of_z = np.where(before > 0, of_z @ w.T, 0)
        of_layers[:0] = [inputs.T @ of_z, of_z.sum(axis=0)]
        of_inputs = of_z @ layers[0][0].T
        every = [*of_layers, of_inputs, of_targets]
        return [every[i] for i in moving]


def parts(arrays: Arrays) -> tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray, np.ndarray]:
    """Layers, inputs and targets, in doubles or wider."""
    *parameters, inputs, targets = (a.astype(wide(a.dtype)) for a in arrays)
    layers = list(zip(parameters[::2], parameters[1::2], strict=True))
    sizes = [inputs.shape[1], *(w.shape[1] for w, _ in layers)]
    right = [(inputs.shape[0], sizes[-1]), *itertools.pairwise(sizes)]
    found = [targets.shape, *(w.shape for w, _ in layers)]
    if found != right or any(b.shape != w.shape[1:] for w, b in layers):
        raise ValueError(f"shapes {[a.shape for a in arrays]}: expected those of layers, inputs and targets that match")
    return layers, inputs, targets


def weighted_sums(layers: Sequence[tuple[np.ndarray, np.ndarray]], inputs: np.ndarray) -> list[np.ndarray]:
    """All z, from the first layer's to the last one's."""
    found: list[np.ndarray] = []
    for w, b in layers:
        x = np.maximum(found[-1], 0) if found else inputs
        found.append(x @ w + b)
    return found


loss = MlpLoss()
