"""What every engine does, and the two: one compiles with XLA, one interprets in NumPy, on meshes of any size."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import jax
import numpy as np
from jax.extend import core
from jax.sharding import AbstractMesh, AxisType, Mesh

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines import simulate
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

    def since(self, place: int) -> "Prepared":
        """The program of the results from this place on, and of nothing that they do not need."""
        raise NotImplementedError("what is not under jit is no one program")


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


class Engine:
    """Makes programs ready and runs them."""

    name: str
    clear_after: int
    """Programs after which JAX's caches are dropped: they keep every traced one alive."""

    def __init__(self) -> None:
        self.traces = self.compilations = 0

    def abstract_mesh(self, mesh: MeshCase) -> AbstractMesh:
        """The mesh to trace under, without devices."""
        return abstract_mesh(mesh)

    def prepare(self, program: Program, mesh: MeshCase) -> Prepared:
        """Traces a program for a mesh; what tracing refuses is refused here."""
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
    """What XLA is told of how to compile: nothing, unless a known defect is looked for."""

    def prepare(self, program: Program, mesh: MeshCase) -> Prepared:
        """Traces a program for a mesh. It is compiled at the first run.

        Run, it raises `CollectiveMismatch` where the interpreter says that devices would wait for one another.
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
    """A program under `jit`, traced here, and compiled once: where it is first run or read.

    Arguments:
        function: the program.
        avals: its arguments without their values.
        options: what XLA is told of how to compile.
    """

    def __init__(
        self, function: Callable[..., Any], avals: list[jax.ShapeDtypeStruct], options: Mapping[str, Any]
    ) -> None:
        # the arguments of the text say which devices there are
        self.function: Any = jax.jit(function, keep_unused=True, compiler_options=dict(options) or None)
        self.avals, self.options, self.traced = avals, options, self.function.trace(*avals)
        self.parts = simulate.may_part(self.traced.jaxpr)
        super().__init__(self._compiled, self.traced.jaxpr)

    def evidence(self, arrays: Sequence[np.ndarray]) -> str:
        """The compiled program as text; the arrays are not looked at."""
        return str(self.traced.lower().compile().as_text())

    def _compiled(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        if self.parts:  # devices that wait for one another for ever would end the process
            simulate.check_that_all_meet(self.jaxpr, arrays)
        return _run(self.function, self.avals, arrays)

    def giving(self, wanted: Sequence[bool]) -> "Compiled":
        """The program of the results that are wanted, compiled by itself."""
        return Compiled(core.jaxpr_as_fun(simulate.giving(self.jaxpr, wanted)), self.avals, self.options)

    def since(self, place: int) -> "Compiled":
        """The program of the results from this place on, compiled by itself."""
        return self.giving([i >= place for i in range(len(self.jaxpr.out_avals))])


class InTwo(Prepared):
    """A program under `jit` that is compiled as two: of the results before a place, and of those from there on.

    So are a derivative's two modes, of which the law of communication reads the second.
    """

    def __init__(self, whole: Compiled, place: int) -> None:
        self.first = whole.giving([i < place for i in range(len(whole.jaxpr.out_avals))])
        self.second, self.place = whole.since(place), place
        super().__init__(lambda arrays: [*self.first(arrays), *self.second(arrays)], whole.jaxpr)

    def since(self, place: int) -> Prepared:
        """The second program."""
        assert place == self.place
        return self.second


def _run(
    function: Callable[..., Any], avals: list[jax.ShapeDtypeStruct], arrays: Sequence[np.ndarray]
) -> list[np.ndarray]:
    placed: list[Any] = jax.device_put(list(arrays), [aval.sharding for aval in avals])
    # of an empty array JAX up to 0.10 cannot put the shards together, and need not
    return [np.asarray(y) if y.size else np.zeros(y.shape, y.dtype) for y in function(*placed)]


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
        return cls(simulate.Simulated(closed_jaxpr, jax.tree.structure(list(closed_jaxpr.out_avals))))

    def _alone(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        with failing_as_a_limit():
            return [np.asarray(result) for result in jax.tree.leaves(self.traced.run(*arrays))]

    def since(self, place: int) -> "Interpreted":
        """The program of the results from this place on."""
        jaxpr = self.traced.closed_jaxpr
        return Interpreted.of(simulate.giving(jaxpr, [i >= place for i in range(len(jaxpr.out_avals))]))

    def evidence(self, arrays: Sequence[np.ndarray]) -> simulate.Record:
        """What a run does besides computing, less what `jit` would not run because nothing reads it."""
        with failing_as_a_limit():
            return self.traced.live().run_recorded(*arrays)[1]

    def each(self, sets: Sets) -> Iterator[list[np.ndarray]]:
        """The results on each of several data sets: of small ones at once, if all of them can be run."""
        if len(sets) > 1 and sum(array.size for arrays in sets for array in arrays) <= MOST_TOGETHER:
            with contextlib.suppress(Exception):  # that of the first data set that has one is raised below
                return iter(self.traced.run_together(sets))
        return super().each(sets)


class SimulateEngine(Engine):
    """Traces each structure once, then interprets it on as many data sets as it is given."""

    name = "simulate"
    clear_after = 2000

    def prepare(self, program: Program, mesh: MeshCase) -> Interpreted:
        """Traces a program for a mesh; nothing is compiled."""
        self._count()
        devices = abstract_mesh(mesh)
        return Interpreted(simulate.prepare(program.build(devices), *program.abstract_arguments(devices)))


ENGINES: dict[str, type[Engine]] = {"simulate": SimulateEngine, "xla": XlaEngine}


def engine_named(name: str) -> Engine:
    """A new engine.

    Raises:
        ValueError: if there is none of that name.
    """
    if name not in ENGINES:
        raise ValueError(f"engine={name!r}: expected one of {', '.join(ENGINES)}")
    return ENGINES[name]()
