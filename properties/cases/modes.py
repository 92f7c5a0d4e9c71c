"""A layer and its loss with every array laid out in a way of its own: what is checked in each mode of sharding."""

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from shardproof.impl.modes import Layouts
from shardproof.oracles.layout import Entries
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.data import Data, generate


@dataclass(frozen=True)
class ModesCase:
    """A layer on a mesh of automatic axes: sizes B, D, F and E, and every layout."""

    mesh: MeshCase
    sides: tuple[int, int, int, int]
    layouts: Layouts
    seed: int

    def __str__(self) -> str:
        laid_out = ", ".join(f"{name}={entries}" for name, entries in vars(self.layouts).items())
        return f"B, D, F, E = {', '.join(map(str, self.sides))}, {laid_out}, seed {self.seed}, on mesh {self.mesh}"

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Those of x, the parameters, and the targets."""
        b, d, f, e = self.sides
        return (b, d), (d, f), (f,), (f, e), (e,), (b, e)

    @property
    def specs(self) -> tuple[Entries, ...]:
        """Their layouts."""
        return (*self.layouts.operands, self.layouts.result)

    @property
    def over_three_axes(self) -> bool:
        """Whether an array is sharded over several axes along one dimension, and along the other one as well.

        Such products XLA gets wrong (see `product_over_three_axes` of the known defects).
        """
        long = [
            [[a for a in entry if self.mesh.shape[a] > 1] for entry in spec] for spec in vars(self.layouts).values()
        ]
        return any(all(spec) and len(spec) > 1 and max(map(len, spec)) > 1 for spec in long)

    def arrays(self, dtype: str) -> list[np.ndarray]:
        """Small integers: every intermediate of the layer is exact, also in 16 bits if the sides are short."""
        numpy_dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
        drawn = [
            generate(Data("exact", self.seed + i), shape, np.dtype("int8"), terms=64)
            for i, shape in enumerate(self.shapes)
        ]
        return [values.clip(-2, 2).astype(numpy_dtype) for values in drawn]
