"""What every engine does."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.simulate.record import Record
from shardproof.properties.programs.program import Program

Sets = Sequence[Sequence[np.ndarray]]
"""Data sets: of each, one global array per argument."""


class Prepared:
    """A program made ready: global arrays in, global arrays out.

    Arguments:
        run: what runs it.
        jaxpr: what was traced; None of what is traced anew in every run.
    """

    def __init__(self, run: Callable[[Sequence[np.ndarray]], list[np.ndarray]], jaxpr: Any = None) -> None:
        self._run = run
        self.jaxpr = jaxpr

    def __call__(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The results in the dtypes that were traced."""
        return self._run(arrays)

    def evidence(self, arrays: Sequence[np.ndarray]) -> Record | str:
        """What says what the program sends: what is seen executed on these global arrays, or the compiled text."""
        raise NotImplementedError("what is not under jit is no one program")

    def each(self, sets: Sets) -> Iterator[list[np.ndarray]]:
        """The results on each of several data sets."""
        return map(self, sets)


@runtime_checkable
class Engine(Protocol):
    """Makes programs ready and runs them."""

    name: str
    compilations: int

    def abstract_mesh(self, mesh: MeshCase) -> Any:
        """The mesh to trace under, without devices."""

    def prepare(self, program: Program, mesh: MeshCase) -> Prepared:
        """Traces (and compiles) a program for a mesh."""
