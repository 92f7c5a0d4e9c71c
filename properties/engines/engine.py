"""The two engines: one compiles with XLA, the other interprets in NumPy, on meshes of any size."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar

import jax
import numpy as np
from jax.extend import core
from jax.sharding import AbstractMesh, AxisType, Mesh

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines import simulate
from shardproof.properties.engines.simulate.interpreter import Prepared
from shardproof.properties.programs.program import Program

AXIS_TYPES = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}


def abstract_mesh(mesh: MeshCase) -> AbstractMesh:
    """The mesh without devices, to trace under."""
    return AbstractMesh(mesh.sizes, mesh.axis_names, axis_types=tuple(AXIS_TYPES[t] for t in mesh.axis_types))


def trace(program: Program, mesh: MeshCase) -> Any:
    """The closed jaxpr of a program under an abstract mesh."""
    abstract = abstract_mesh(mesh)
    return jax.make_jaxpr(program.build(abstract))(*program.abstract_arguments(abstract))


def device_mesh(mesh: MeshCase) -> Mesh:
    """The mesh over real (or virtual) devices; raises ValueError if it names one that is not there."""
    devices = jax.devices()
    if max(mesh.devices) >= len(devices):
        raise ValueError(f"mesh={mesh}: expected devices below {len(devices)}, which is how many there are")
    chosen = np.array([devices[i] for i in mesh.devices]).reshape(mesh.sizes)
    return Mesh(chosen, mesh.axis_names, axis_types=tuple(AXIS_TYPES[t] for t in mesh.axis_types))


class Engine:
    """Traces, compiles and runs programs."""

    name: str
    clear_after: int
    """The number of programs after which JAX's caches are cleared: they hold every traced one."""

    def __init__(self) -> None:
        self.traces = self.compilations = 0

    def prepare(self, program: Program, mesh: MeshCase) -> Prepared:
        """Traces a program for a mesh, and raises what tracing raises."""
        raise NotImplementedError

    def _count(self) -> None:
        self.traces += 1
        if self.traces % self.clear_after == 0:
            jax.clear_caches()


class XlaEngine(Engine):
    """Compiles each structure once with `jit`, then runs it on as many data sets as it is given."""

    name = "xla"
    clear_after = 400
    compiler_options: ClassVar[Mapping[str, Any]] = {}
    """Options for XLA; none, unless a known defect is repaired."""

    def prepare(self, program: Program, mesh: MeshCase) -> Prepared:
        """Traces a program for a mesh; the first run compiles it.

        A run raises `CollectiveMismatch` where the interpreter finds a deadlock.
        """
        devices = device_mesh(mesh)
        function: Any = program.build(devices)
        avals = program.abstract_arguments(devices)
        self.compilations += 1
        self._count()
        if not program.compiled:
            return Prepared(partial(_run, function, avals))
        return Compiled(function, avals, self.compiler_options)


class Compiled(Prepared):
    """A program under `jit`, traced at once, and compiled when it is first run or read."""

    def __init__(
        self, function: Callable[..., Any], avals: list[jax.ShapeDtypeStruct], options: Mapping[str, Any]
    ) -> None:
        # unused arguments stay, so that the compiled text has all devices
        jitted: Any = jax.jit(function, keep_unused=True, compiler_options=dict(options) or None)
        self.avals, self.options, self.traced = avals, options, jitted.trace(*avals)
        self.diverges = simulate.may_diverge(self.traced.jaxpr)
        super().__init__(self._compiled, self.traced.jaxpr)

    @cached_property
    def executable(self) -> Any:
        """The compiled program."""
        return self.traced.lower().compile()

    def evidence(self, arrays: Sequence[np.ndarray]) -> str:
        """The compiled program as text, whatever the arrays."""
        return str(self.executable.as_text())

    def _compiled(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        if self.diverges:  # a deadlock would end the process
            simulate.check_that_all_meet(self.jaxpr, arrays)
        return _run(self.executable, self.avals, arrays)

    def select_results(self, wanted: Sequence[bool]) -> "Compiled":
        """The program of these results alone, compiled separately."""
        return Compiled(core.jaxpr_as_fun(simulate.select_results(self.jaxpr, wanted)), self.avals, self.options)


class InTwo(Prepared):
    """A program under `jit` compiled in two parts: the results before a place, and those from there on.

    A derivative's two modes are compiled so, since the law of communication reads the second.
    """

    def __init__(self, whole: Compiled, place: int) -> None:
        first = whole.select_results([i < place for i in range(len(whole.jaxpr.out_avals))])
        self.second, self.place = whole.since(place), place
        super().__init__(lambda arrays: [*first(arrays), *self.second(arrays)], whole.jaxpr)

    def since(self, place: int) -> Prepared:
        """The second part."""
        assert place == self.place
        return self.second


def _run(
    function: Callable[..., Any], avals: list[jax.ShapeDtypeStruct], arrays: Sequence[np.ndarray]
) -> list[np.ndarray]:
    on_devices: list[Any] = jax.device_put(list(arrays), [aval.sharding for aval in avals])
    # JAX up to 0.10 cannot read a sharded empty array
    return [np.asarray(y) if y.size else np.zeros(y.shape, y.dtype) for y in function(*on_devices)]


class SimulateEngine(Engine):
    """Traces each structure once, then interprets it on as many data sets as it is given."""

    name = "simulate"
    clear_after = 2000

    def prepare(self, program: Program, mesh: MeshCase) -> simulate.Simulated:
        """Traces a program for a mesh; nothing is compiled."""
        self._count()
        devices = abstract_mesh(mesh)
        return simulate.prepare(program.build(devices), *program.abstract_arguments(devices))


ENGINES: dict[str, type[Engine]] = {"simulate": SimulateEngine, "xla": XlaEngine}


def engine_named(name: str) -> Engine:
    """A new engine; raises ValueError if there is none of that name."""
    if name not in ENGINES:
        raise ValueError(f"engine={name!r}: expected one of {', '.join(ENGINES)}")
    return ENGINES[name]()
