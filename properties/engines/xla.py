"""The engine that compiles with XLA and runs on the devices at hand."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
        """Traces a program for a mesh; what tracing refuses is refused here. It is compiled at the first run.

        Run, it raises `CollectiveMismatch` where the interpreter says that devices would wait for one another.
        """
        devices = device_mesh(mesh)
        function: Any = program.build(devices)
        avals = program.abstract_arguments(devices)
        self.compilations += 1
        if self.compilations % self.clear_after == 0:
            jax.clear_caches()
        if not program.compiled:
            return Prepared(partial(_run, function, avals))
        # the arguments of the text say which devices there are
        jitted = jax.jit(function, keep_unused=True, compiler_options=dict(self.compiler_options) or None)
        return Compiled(jitted, avals)


class Compiled(Prepared):
    """A program under `jit`, traced here, and compiled once: where it is first run or read.

    Arguments:
        function: the program.
        avals: its arguments without their values.
    """

    def __init__(self, function: Any, avals: list[jax.ShapeDtypeStruct]) -> None:
        self.function, self.avals, self.traced = function, avals, function.trace(*avals)
        self.parts = simulate.may_part(self.traced.jaxpr)
        super().__init__(self._compiled, self.traced.jaxpr)

    def evidence(self, arrays: Sequence[np.ndarray]) -> str:
        """The compiled program as text; the arrays are not looked at."""
        return str(self.traced.lower().compile().as_text())

    def _compiled(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        if self.parts:  # devices that wait for one another for ever would end the process
            simulate.check_that_all_meet(self.jaxpr, arrays)
        return _run(self.function, self.avals, arrays)


def _run(
    function: Callable[..., Any], avals: list[jax.ShapeDtypeStruct], arrays: Sequence[np.ndarray]
) -> list[np.ndarray]:
    placed: list[Any] = jax.device_put(list(arrays), [aval.sharding for aval in avals])
    return [to_numpy(result) for result in function(*placed)]
