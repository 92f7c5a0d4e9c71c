"""The engine that interprets the traced program in NumPy: no devices, no compilation, meshes of any size."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import jax
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.communication.counted import Counted, of_record
from shardproof.properties.engines import simulate
from shardproof.properties.engines.engine import Prepared
from shardproof.properties.engines.xla import abstract_mesh
from shardproof.properties.programs import Program


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
        if not simulate.raised_in(error).startswith(("shardproof.properties.engines.simulate.", "shardproof.oracles.")):
            raise
        first = str(error).partition("\n")[0]
        what = f"this program, for an error of its own ({type(error).__name__}: {first})"
        raise simulate.InterpreterLimit(f"the interpreter cannot run {what}", what) from error


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

    def prepare(self, program: Program, mesh: MeshCase) -> Prepared:
        """Traces a program for a mesh; nothing is compiled."""
        traced = self._traced(program, mesh)

        def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
            with failing_as_a_limit():
                return [np.asarray(result) for result in jax.tree.leaves(traced.run(*arrays))]

        return run

    def count(self, program: Program, mesh: MeshCase, arrays: Sequence[np.ndarray]) -> Counted:
        """What is executed on these arrays, less what `jit` would not run because nothing reads it."""
        return of_record(self.record(program, mesh, arrays))

    def record(self, program: Program, mesh: MeshCase, arrays: Sequence[np.ndarray]) -> simulate.Record:
        """What a run does besides computing, less what `jit` would not run because nothing reads it."""
        traced = self._traced(program, mesh)
        with failing_as_a_limit():
            return traced.live().run_recorded(*arrays)[1]

    def _traced(self, program: Program, mesh: MeshCase) -> simulate.Simulated:
        devices = abstract_mesh(mesh)
        avals = [
            jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=NamedSharding(devices, a.partition_spec))
            for a in program.arguments
        ]
        self.traces += 1
        if self.traces % self.clear_after == 0:
            jax.clear_caches()
        return simulate.prepare(program.build(devices), *avals)
