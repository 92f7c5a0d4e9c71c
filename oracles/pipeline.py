"""A pipeline of layers: all layers `tanh(x W)`, one after the other, in logical order.

Operands are blocks `weights [*mesh.sizes, v D, D]`, of v layers, and `x [*mesh.sizes, M, B, D]`. Of p participants the
i-th has the layers i, p + i, 2 p + i and so on.
"""

import numpy as np

from shardproof.oracles.collectives import Axes, Blocks, Operands, all_gather
from shardproof.oracles.dtypes import is_float, wide
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.transposes import all_gather_transpose


class Pipeline:
    """`weights [D_Y, D]`, `x [M, B, D]` to `[M, B, D]`, which is the same on all participants if x is."""

    def value(self, operands: Operands, mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """Every device's x, through the layers of all participants."""
        return [self.passed(operands, mesh, axes)[-1]]

    def passed(self, operands: Operands, mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """X, and what each layer makes of it."""
        passed = [operands[1].astype(wide(operands[1].dtype))]
        with np.errstate(invalid="ignore", over="ignore"):
            for layer in self.layers(operands, mesh, axes):
                passed.append(np.tanh(passed[-1] @ layer))
        return passed

    def pushforward(self, operands: Operands, tangents: Operands, mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """The chain rule, layer by layer: `dy = tanh'(x W) (dx W + x dW)`, and tanh' is `1 - y^2`."""
        passed, dx = self.passed(operands, mesh, axes), tangents[1].astype(wide(tangents[1].dtype))
        layers, changes = self.layers(operands, mesh, axes), self.layers(tangents, mesh, axes)
        for x, y, layer, change in zip(passed, passed[1:], layers, changes, strict=False):
            dx = (1 - y**2) * (dx @ layer + x @ change)
        return [dx]

    def pullback(self, operands: Operands, cotangents: Operands, mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """The chain rule, from the last layer back: `g = tanh'(x W) ct`, of x it is `g W^T`, and of W `x^T g`."""
        passed, ct = self.passed(operands, mesh, axes), cotangents[0].astype(wide(cotangents[0].dtype))
        layers, of_layers = self.layers(operands, mesh, axes), []
        for x, y, layer in reversed(list(zip(passed, passed[1:], layers, strict=False))):
            g = (1 - y**2) * ct
            of_layers.append((x.swapaxes(-1, -2) @ g).sum(axis=len(mesh.sizes)))  # over microbatches
            ct = g @ layer.swapaxes(-1, -2)
        by_layer = np.stack(of_layers[::-1], axis=len(mesh.sizes))
        return [self.of_layers(by_layer, mesh, axes), ct]

    def layers(self, operands: Operands, mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """All layers, in turn, on every device: `[*mesh.sizes, 1, D, D]` each."""
        weights, x = operands
        rows, columns = weights.shape[len(mesh.sizes) :]
        if x.ndim - len(mesh.sizes) != 3:
            raise ValueError(f"x: {list(x.shape)}: expected blocks of microbatches, examples and features")
        if not is_float(weights.dtype):
            raise ValueError(f"weights: {weights.dtype}: expected a floating dtype")
        if columns != x.shape[-1] or rows % columns:
            raise ValueError(f"weights: blocks of {rows} by {columns}: expected layers of {x.shape[-1]} features")
        of_each = weights.astype(wide(weights.dtype)).reshape(*mesh.sizes, -1, columns, columns)
        of_all = all_gather(of_each, mesh, axes, axis=1)  # [*mesh.sizes, v, p, D, D]
        by_layer = of_all.reshape(*mesh.sizes, -1, columns, columns)
        return [by_layer[..., n, :, :][..., None, :, :] for n in range(by_layer.shape[-3])]

    def of_layers(self, by_layer: Blocks, mesh: MeshCase, axes: Axes) -> Blocks:
        """The transpose of `layers`: the cotangents of a layer, added up on the participant that has it."""
        columns = by_layer.shape[-1]
        of_all = by_layer.reshape(*mesh.sizes, -1, mesh.axis_size(axes), columns, columns)
        return all_gather_transpose(of_all, mesh, axes, axis=1).reshape(*mesh.sizes, -1, columns)


pipeline = Pipeline()
