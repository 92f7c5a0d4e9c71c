"""The engine that interprets the traced program in NumPy: no devices, no compilation, meshes of any size."""

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines import simulate
from shardproof.properties.engines.engine import Prepared, Sets
from shardproof.properties.engines.xla import abstract_mesh
from shardproof.properties.programs.program import Program

OWN = ("shardproof.properties.engines.simulate.", "shardproof.properties.precision.")
"""Where the interpreter's rules are, and what runs them on doubles."""


@contextmanager
def failing_as_a_limit() -> Iterator[None]:
    """An interpreter that fails itself says nothing of the program: that is a limit of it, like a rule it lacks.

    Raises:
        InterpreterLimit: in place of an error of the interpreter's own.
    """
    try:
        yield
    except simulate.OF_THE_PROGRAM:
        raise
    except Exception as error:
        if not simulate.raised_in(error).startswith(OWN):
            raise
        first = str(error).partition("\n")[0]
        what = f"this program, for an error of its own ({type(error).__name__}: {first})"
        raise simulate.InterpreterLimit(f"the interpreter cannot run {what}", what) from error


MOST_TOGETHER = 2**14
"""The most elements of data sets that are run at once: of larger ones, NumPy's time is not spent in calls."""


class Interpreted(Prepared):
    """A program that is traced: global arrays in, global arrays out.

    Arguments:
        traced: the program.
    """

    def __init__(self, traced: simulate.Simulated) -> None:
        super().__init__(self._alone, traced.closed_jaxpr)
        self.traced = traced

    @classmethod
    def of(cls, closed_jaxpr: Any) -> "Interpreted":
        """A program that something else has traced."""
        results = jax.tree.structure(list(closed_jaxpr.out_avals))
        return cls(simulate.Simulated(closed_jaxpr, closed_jaxpr.in_avals, results))

    def _alone(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        with failing_as_a_limit():
            return [np.asarray(result) for result in jax.tree.leaves(self.traced.run(*arrays))]

    def evidence(self, arrays: Sequence[np.ndarray]) -> simulate.Record:
        """What a run does besides computing, less what `jit` would not run because nothing reads it."""
        with failing_as_a_limit():
            return self.traced.live().run_recorded(*arrays)[1]

    def each(self, sets: Sets) -> Iterator[list[np.ndarray]]:
        """The results on each of several data sets: of small ones at once, if all of them can be run."""
        if small(sets):
            with contextlib.suppress(Exception):  # that of the first data set that has one is raised below
                return iter(self.traced.run_together(sets))
        return super().each(sets)


def small(sets: Sets) -> bool:
    """Whether several data sets are small enough to be run at once."""
    return len(sets) > 1 and sum(array.size for arrays in sets for array in arrays) <= MOST_TOGETHER


class SimulateEngine:
    """Traces each structure once, then interprets it on as many data sets as it is given."""

    name = "simulate"
    clear_after = 2000
    """Traces after which JAX's caches are dropped: they keep every traced program alive."""

    def __init__(self) -> None:
        self.compilations = 0
        self.traces = 0

    def abstract_mesh(self, mesh: MeshCase) -> AbstractMesh:
        """The mesh to trace under."""
        return abstract_mesh(mesh)

    def prepare(self, program: Program, mesh: MeshCase) -> Interpreted:
        """Traces a program for a mesh; nothing is compiled."""
        return Interpreted(self._traced(program, mesh))

    def _traced(self, program: Program, mesh: MeshCase) -> simulate.Simulated:
        devices = abstract_mesh(mesh)
        self.traces += 1
        if self.traces % self.clear_after == 0:
            jax.clear_caches()
        return simulate.prepare(program.build(devices), *program.abstract_arguments(devices))
