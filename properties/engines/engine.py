"""What every engine does."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.simulate.record import Record
from shardproof.properties.programs.program import Program

Prepared = Callable[[Sequence[np.ndarray]], list[np.ndarray]]
"""A program made ready: global arrays in, global arrays out."""


@runtime_checkable
class Engine(Protocol):
    """Makes programs ready and runs them."""

    name: str
    compilations: int

    def abstract_mesh(self, mesh: MeshCase) -> Any:
        """The mesh to trace under, without devices."""

    def prepare(self, program: Program, mesh: MeshCase) -> Prepared:
        """Traces (and compiles) a program for a mesh."""

    def evidence(self, program: Program, mesh: MeshCase, arrays: Sequence[np.ndarray]) -> Record | str:
        """What says what the program sends: what was seen executed on these global arrays, or the compiled text."""
