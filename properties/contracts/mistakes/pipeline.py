"""What is easily mistaken in a pipeline: the order of its layers, their number, and what has a derivative."""

from collections.abc import Sequence

import numpy as np

from shardproof.oracles import pipeline
from shardproof.oracles.collectives import Axes, Blocks
from shardproof.oracles.mesh import MeshCase, as_axes


class OtherAxes(pipeline.Pipeline):
    """Takes the participants in mesh order."""

    def layers(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """All layers, in the order of the mesh's own axes."""
        return super().layers(operands, mesh, mesh.in_mesh_order(as_axes(axes)))

    def of_layers(self, by_layer: Blocks, mesh: MeshCase, axes: Axes) -> Blocks:
        """The transpose of that."""
        return super().of_layers(by_layer, mesh, mesh.in_mesh_order(as_axes(axes)))


class Backwards(pipeline.Pipeline):
    """Begins with the last participant."""

    def layers(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """All layers, in the reverse order."""
        return super().layers(operands, mesh, axes)[::-1]

    def of_layers(self, by_layer: Blocks, mesh: MeshCase, axes: Axes) -> Blocks:
        """The transpose of that."""
        return super().of_layers(np.flip(by_layer, axis=-3), mesh, axes)


class Without(pipeline.Pipeline):
    """Leaves out a layer, for its results alone.

    Arguments:
        which: the first, 0, or the last, -1.
    """

    def __init__(self, which: int) -> None:
        self.which = which

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """X through all layers but one."""
        passed = operands[1].astype(np.float64)
        layers = self.layers(operands, mesh, axes)
        del layers[self.which]
        for layer in layers:
            passed = self.activated(passed @ layer)
        return [passed]


class LinearEnd(pipeline.Pipeline):
    """Takes no tanh of what the last layer multiplies."""

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """The last layer's product."""
        *_, before, _ = self.passed(operands, mesh, axes)
        return [before @ self.layers(operands, mesh, axes)[-1]]


class Earlier(pipeline.Pipeline):
    """Gives of every microbatch what it should give of another one.

    Arguments:
        by: how far behind that is.
    """

    def __init__(self, by: int) -> None:
        self.by = by

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """The results of other microbatches, wrapping."""
        return [np.roll(super().value(operands, mesh, axes)[0], self.by, axis=len(mesh.sizes))]


class Scaled(pipeline.Pipeline):
    """Has the right values, and gradients of the weights that are too large by the number of participants."""

    def of_layers(self, by_layer: Blocks, mesh: MeshCase, axes: Axes) -> Blocks:
        """The right ones, as often as there are participants."""
        return mesh.axis_size(axes) * super().of_layers(by_layer, mesh, axes)


class NothingArrives(pipeline.Pipeline):
    """Has the right values, and a derivative in which what another participant hands on is a constant."""

    def pullback(
        self, operands: Sequence[Blocks], cotangents: Sequence[Blocks], mesh: MeshCase, axes: Axes
    ) -> list[Blocks]:
        """That of the last layer alone."""
        *_, x, y = self.passed(operands, mesh, axes)
        g = self.slope(y) * cotangents[0]
        count = len(self.layers(operands, mesh, axes))
        of_last = (x.swapaxes(-1, -2) @ g).sum(axis=len(mesh.sizes))
        by_layer = np.stack([*[np.zeros_like(of_last)] * (count - 1), of_last], axis=len(mesh.sizes))
        return [self.of_layers(by_layer, mesh, axes), np.zeros_like(cotangents[0])]


MISTAKES = {
    "layers follow one another in mesh order, and not in that of the axis tuple": OtherAxes(),
    "the last participant's layer is the first": Backwards(),
    "the first layer is left out": Without(0),
    "the last layer is left out": Without(-1),
    "no tanh is taken after the last layer": LinearEnd(),
    "every microbatch has the result of the one before": Earlier(1),
    "every microbatch has the result of the one behind": Earlier(-1),
    "gradients of the weights are multiplied by the number of participants": Scaled(),
    "what another participant hands on is a constant in the derivative": NothingArrives(),
}
