"""Some steps of training: everything needed to take them again."""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from shardproof.oracles.dtypes import exact_limit
from shardproof.oracles.mesh import MeshCase

NARROW = ("bfloat16", "float16")
"""Dtypes in which a step is taken from small integers, so that its gradient is exact."""


class Masked(Protocol):
    """What may take a mask of its examples beside inputs and targets."""

    @property
    def masked(self) -> bool:
        """Whether it does."""


@dataclass(frozen=True)
class Trial:
    """Some steps of a model on a mesh.

    Arguments:
        mesh: the mesh.
        data: the axes over which examples are shared.
        model: those over which features are.
        sizes: `D_0` to `D_n`.
        examples: `B`.
        microbatches: how many parts a device takes its examples in.
        steps: how many steps there are.
        seed: what the arrays are drawn with.
        dtype: of all floats.
    """

    mesh: MeshCase
    data: tuple[str, ...]
    model: tuple[str, ...]
    sizes: tuple[int, ...]
    examples: int
    microbatches: int = 1
    steps: int = 1
    seed: int = 0
    dtype: str = "float64"

    def __str__(self) -> str:
        layers = "x".join(map(str, self.sizes))
        batch = f"{self.examples} examples" + (f" in {self.microbatches} microbatches" * (self.microbatches > 1))
        return f"{layers}, {batch}, {self.dtype}, data={self.data}, model={self.model} on mesh {self.mesh}"

    @property
    def numpy_dtype(self) -> np.dtype:
        """The dtype, ml_dtypes' own included."""
        return np.dtype(getattr(ml_dtypes, self.dtype, self.dtype))

    def exact_in(self, dtype: str, *, mean: bool) -> bool:
        """Whether one step's gradient, of small integers through one layer, is exact in a dtype.

        Outputs are off by D_0 + 2 at most, and a gradient adds up twice that, of every example.

        Arguments:
            dtype: the dtype.
            mean: whether the step adds up what is divided by the number of examples already.
        """
        power_of_two = self.examples & (self.examples - 1) == 0
        most = 2 * self.examples * (self.sizes[0] + 2)
        fits = most <= exact_limit(np.dtype(getattr(ml_dtypes, dtype, dtype)))
        return len(self.sizes) == 2 and self.steps == 1 and fits and (power_of_two or not mean)

    def arrays(self, form: Masked) -> tuple[Any, Any]:
        """Parameters and batch for a form; of a mask at least one is true, and devices count differently."""
        rng = np.random.default_rng(self.seed)
        narrow = self.dtype in NARROW

        def drawn(*shape: int) -> np.ndarray:
            values = rng.integers(-1, 2, shape) if narrow else rng.normal(size=shape)
            return values.astype(self.numpy_dtype)

        layers = []
        for a, b in zip(self.sizes[:-1], self.sizes[1:], strict=True):
            w = drawn(a, b)
            layers.append((w if narrow else w / math.sqrt(a), drawn(b)))
        batch = tuple(drawn(self.examples, self.sizes[i]) for i in (0, -1))
        mask = rng.random(self.examples) < 0.6
        mask[self.seed % self.examples] = True
        return layers, (*batch, mask) if form.masked else batch
