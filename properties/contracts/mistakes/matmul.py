"""What is easily mistaken in the transformer block: what relu is taken of, and what has a derivative."""

from collections.abc import Sequence

import numpy as np

from shardproof.oracles.collective_matmul import TransformerBlock, matmul_reduce_scatter, product
from shardproof.oracles.collectives import Axes, Blocks, all_gather
from shardproof.oracles.dtypes import rounded, wide
from shardproof.oracles.mesh import MeshCase


class DerivativeEverywhere(TransformerBlock):
    """Has the right values, and a derivative by hidden values that are below zero."""

    def passes(self, before: Blocks) -> Blocks:
        """All of them."""
        return np.ones_like(before, bool)


class NoRelu(DerivativeEverywhere):
    """Keeps hidden values below zero."""

    def relu(self, before: Blocks) -> Blocks:
        """What they were."""
        return before


class ReluOfEach(TransformerBlock):
    """Takes relu of the product of every participant's block, and adds up what comes of it."""

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes) -> Blocks:
        """The result's blocks."""
        x, w_in, w_out = (o.astype(wide(o.dtype)) for o in operands)
        p = mesh.axis_size(axes)
        gathered = all_gather(x, mesh, axes, axis=-1, tiled=True)
        pairs = zip(np.split(gathered, p, axis=-1), np.split(w_in, p, axis=-2), strict=True)
        hidden = np.sum([self.relu(product(block, rows, mesh)) for block, rows in pairs], axis=0)
        return rounded(matmul_reduce_scatter(1).value([hidden, w_out], mesh, axes), operands[0].dtype)


OF_TRANSFORMER_BLOCK = {
    "hidden values below zero have a derivative": DerivativeEverywhere(),
    "no relu is taken": NoRelu(),
    "relu is taken of every participant's terms, before they are added up": ReluOfEach(),
}
