"""The engine that compiles with XLA and runs on the devices at hand."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines import simulate
from shardproof.properties.engines.engine import Prepared
from shardproof.properties.programs.program import Program

AXIS_TYPES = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}


def abstract_mesh(mesh: MeshCase) -> AbstractMesh:
    """The mesh without devices, to trace under."""
    return AbstractMesh(mesh.sizes, mesh.axis_names, axis_types=tuple(AXIS_TYPES[t] for t in mesh.axis_types))


def device_mesh(mesh: MeshCase) -> Mesh:
    """The mesh over real (or virtual) devices.

    Raises:
        ValueError: if the mesh names a device that is not there.
    """
    devices = jax.devices()
    if max(mesh.devices) >= len(devices):
        raise ValueError(f"mesh={mesh}: expected devices below {len(devices)}, which is how many there are")
    chosen = np.array([devices[i] for i in mesh.devices]).reshape(mesh.sizes)
    return Mesh(chosen, mesh.axis_names, axis_types=tuple(AXIS_TYPES[t] for t in mesh.axis_types))


def to_numpy(array: jax.Array) -> np.ndarray:
    """The whole array; of an empty one, JAX up to 0.10 cannot put the shards together, and need not."""
    return np.asarray(array) if array.size else np.zeros(array.shape, array.dtype)


class XlaEngine:
    """Compiles each structure once with `jit`, then runs it on as many data sets as it is given."""

    name = "xla"
    clear_after = 400
    """Compilations after which JAX's caches are dropped: they keep every traced program alive."""
    compiler_options: ClassVar[Mapping[str, Any]] = {}
    """What XLA is told of how to compile: nothing, unless a known defect is looked for."""

    def __init__(self) -> None:
        self.compilations = 0

    def abstract_mesh(self, mesh: MeshCase) -> AbstractMesh:
        """The mesh to trace under, without devices."""
        return abstract_mesh(mesh)

    def prepare(self, program: Program, mesh: MeshCase) -> Prepared:
        """Traces and compiles a program for a mesh.

        Run, it raises `CollectiveMismatch` where the interpreter says that devices would wait for one another.
        """
        function, avals = self._built(program, mesh)
        # what tracing refuses is refused here; compiled at the first run
        jaxpr = function.trace(*avals).jaxpr if program.compiled else None
        parts = jaxpr is not None and simulate.may_part(jaxpr)

        def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
            if parts:  # devices that wait for one another for ever would end the process
                simulate.check_that_all_meet(jaxpr, arrays)
            placed: list[Any] = jax.device_put(list(arrays), [aval.sharding for aval in avals])
            return [to_numpy(result) for result in function(*placed)]

        return Prepared(run, jaxpr)

    def evidence(self, program: Program, mesh: MeshCase, arrays: Sequence[np.ndarray]) -> str:
        """The compiled program as text; the arrays are not looked at."""
        function, avals = self._built(program, mesh)
        kept = jax.jit(function, keep_unused=True)  # the arguments say which devices there are
        return str(kept.lower(*avals).compile().as_text())

    def _built(self, program: Program, mesh: MeshCase) -> tuple[Any, list[jax.ShapeDtypeStruct]]:
        """The function, under `jit` where the program is, and its arguments without their values."""
        devices = device_mesh(mesh)
        function: Any = program.build(devices)
        avals = program.abstract_arguments(devices)
        self.compilations += 1
        if self.compilations % self.clear_after == 0:
            jax.clear_caches()
        if not program.compiled:
            return function, avals
        return jax.jit(function, compiler_options=dict(self.compiler_options) or None), avals
