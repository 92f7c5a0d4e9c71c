"""What every engine does."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.communication.counted import Counted
from shardproof.properties.programs import Program

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

    def count(self, program: Program, mesh: MeshCase, arrays: Sequence[np.ndarray]) -> Counted:
        """What the program sends, forward or whatever it computes, on these global arrays."""
