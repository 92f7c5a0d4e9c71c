"""The two engines, one of which compiles with XLA, and the other interprets in NumPy; and a case's programs on them."""

import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from traceback import walk_tb
from typing import Any, ClassVar, TypeVar
from unittest import mock

import jax
import numpy as np
from jax import lax
from jax.extend import core, source_info_util
from jax.interpreters import ad
from jax.sharding import AbstractMesh, AxisType, Mesh

from shardproof.oracles.dtypes import width
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Placement, stacked_axes
from shardproof.properties.engines import simulate
from shardproof.properties.engines.simulate import Simulated
from shardproof.properties.engines.simulate.errors import raised_in
from shardproof.properties.engines.simulate.exchange import divide
from shardproof.properties.engines.simulate.interpreter import Prepared, select_results
from shardproof.properties.engines.simulate.jaxprs import equations
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import Program, Seen, WrongResult, derivatives, forward, readable_errors
from shardproof.properties.programs.transformations import oracle_blocks
from shardproof.properties.programs.violation import NotDifferentiable

AXIS_TYPES = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}


def abstract_mesh(mesh: MeshCase) -> AbstractMesh:
    """The mesh without devices, to trace under."""
    return AbstractMesh(mesh.sizes, mesh.axis_names, axis_types=tuple(AXIS_TYPES[t] for t in mesh.axis_types))


def trace(program: Program, mesh: MeshCase) -> Any:
    """The closed jaxpr of a program under an abstract mesh; raises what the function refuses, before anything runs."""
    abstract = abstract_mesh(mesh)
    with readable_errors():  # also the function's own rules of derivatives
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
        self.function: Any = jax.jit(function, keep_unused=True, compiler_options=dict(options) or None)
        self.avals, self.options, self.traced = avals, options, self.function.trace(*avals)
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
        packed = any(width(aval.dtype) < 8 for aval in self.avals)  # refused otherwise: `compiled_int4`
        return _run(self.function if packed else self.executable, self.avals, arrays)

    def select_results(self, wanted: Sequence[bool]) -> "Compiled":
        """The program of these results alone, compiled separately."""
        return Compiled(core.jaxpr_as_fun(simulate.select_results(self.jaxpr, wanted)), self.avals, self.options)


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


MAX_READY = 32
"""The number of structures that stay compiled: Hypothesis tries one again and again while it shrinks."""

MODES = {"gradient": (True, True), "reverse gradient": (False, True), "forward gradient": (True, False)}
"""The kinds of derivatives: with forward mode or not, and with reverse mode or not."""

T = TypeVar("T")

_ready: OrderedDict[tuple[object, ...], "Ready"] = OrderedDict()
_shared: list[dict[tuple[str, Case], tuple[list[Any], Iterator[Any]]]] = []


@dataclass(frozen=True)
class Ready:
    """A structure's prepared program, and what its trace returned."""

    prepared: Prepared
    seen: Seen
    placements: tuple[Placement, ...] = ()


def ready(kind: str, implementation: Implementation, case: Case, engine: Engine) -> Ready:
    """The program of a case's structure: `value`, `placed`, or one of `MODES`, prepared once.

    Raises:
        NotDifferentiable: if JAX has no derivative of the function in this mode.
        WrongResult: if the function returns another tree, or in a derivative other shapes, than the contract says.
    """
    structure = case.structure if kind == "placed" else _without_out(case)
    key = (kind, implementation, structure, engine.name)
    if key in _ready:
        _ready.move_to_end(key)
        return _ready[key]
    made = _ready[key] = _make(kind, implementation, case, engine)
    jaxpr = made.prepared.jaxpr
    if engine.name == XlaEngine.name and jaxpr is not None:  # the interpreter takes the same trace
        of_interpreter = (kind, implementation, structure, SimulateEngine.name)
        _ready[of_interpreter] = dataclasses.replace(made, prepared=Simulated(jaxpr))
    while len(_ready) > MAX_READY:
        _ready.popitem(last=False)
    return made


def derived(implementation: Implementation, case: Case, engine: Engine) -> tuple[str, Ready]:
    """The derivative's kind and program, in both modes if JAX has both; raises NotImplementedError if it has none.

    A custom_vjp has no forward mode, a while_loop no reverse mode.
    """
    return in_some_mode(lambda kind: (kind, ready(kind, implementation, case, engine)))


def in_some_mode(function: Callable[[str], T]) -> T:
    """The result for the first of `MODES` that is supported; raises the first NotImplementedError if none is."""
    refused: list[NotImplementedError] = []
    for kind in MODES:
        try:
            return function(kind)
        except NotImplementedError as error:
            refused.append(error)
    raise refused[0]


def reverse_mode(implementation: Implementation, case: Case, engine: Engine) -> Ready:
    """The program `(operands, tangents, cotangents) -> gradients`; raises NotImplementedError without reverse mode.

    There are no tangents where there is no forward mode.
    """
    made = _with_gradients(implementation, case, engine)
    others = len(made.prepared.jaxpr.out_avals) - len(case.contract.call.moving(case))
    return dataclasses.replace(made, prepared=made.prepared.since(others))


def values_and_gradients(implementation: Implementation, case: Case, engine: Engine) -> Any:
    """The closed jaxpr of values and gradients; raises NotImplementedError without reverse mode."""
    made = _with_gradients(implementation, case, engine)
    jaxpr, values, gradients = made.prepared.jaxpr, len(made.placements), len(case.contract.call.moving(case))
    tangents = len(jaxpr.out_avals) - values - gradients
    return select_results(jaxpr, [True] * values + [False] * tangents + [True] * gradients)


def _with_gradients(implementation: Implementation, case: Case, engine: Engine) -> Ready:
    both = ("gradient", implementation, _without_out(case), engine.name) in _ready
    return ready("gradient" if both else "reverse gradient", implementation, case, engine)


def _without_out(case: Case) -> Case:
    return dataclasses.replace(case.structure, out=None)


@contextmanager
def sharing() -> Iterator[None]:
    """Lets the laws of one case share what they ask of oracles and of samples: it is made once."""
    _shared.append({})
    try:
        yield
    finally:
        _shared.pop()


def shared(kind: str, case: Case, items: Iterator[T]) -> Iterator[T]:
    """The items of a case, one for each data set, of which those that another law has taken are not made again.

    Arguments:
        kind: of what.
        items: makes them; what another law's made is in its place within `sharing`.
    """
    made, source = _shared[-1].setdefault((kind, case), ([], items)) if _shared else ([], items)
    yield from made
    try:
        for item in source:
            made.append(item)
            yield item
    except Exception:
        if _shared:
            _shared[-1].pop((kind, case), None)  # it makes no more
        raise


def forget() -> None:
    """Drops all that was traced or compiled, since JAX's rules have changed."""
    jax.clear_caches()
    _ready.clear()
    for made in _shared:
        made.clear()


class _Here:
    """A traceback that is none, so that JAX takes that of the frame which it is in."""

    def __bool__(self) -> bool:
        return False

    def as_python_traceback(self) -> None:
        return None


@contextmanager
def backward_passes_on_their_lines() -> Iterator[None]:
    """Leaves equations of a `custom_vjp`'s backward pass on their own lines, where JAX has that of the call."""
    call: Any = jax.custom_vjp.__call__

    def called(function: Any, *args: Any, **kwargs: Any) -> Any:
        if not function.bwd:  # which JAX says
            return call(function, *args, **kwargs)

        @functools.wraps(function.bwd)
        def bwd(*given: Any) -> Any:
            with source_info_util.user_context(_Here()):
                return function.bwd(*given)

        own = jax.custom_vjp(function.fun, nondiff_argnums=function.nondiff_argnums)
        own.defvjp(function.fwd, bwd, symbolic_zeros=function.symbolic_zeros, optimize_remat=function.optimize_remat)
        return call(own, *args, **kwargs)

    with mock.patch.object(jax.custom_vjp, "__call__", called):
        yield


@backward_passes_on_their_lines()
def _make(kind: str, implementation: Implementation, case: Case, engine: Engine) -> Ready:
    seen = Seen()
    if kind == "value":
        with differentiating():  # a link of its chain may differentiate
            return Ready(engine.prepare(forward(case, implementation, seen), case.mesh), seen)
    if kind == "placed":
        return Ready(engine.prepare(forward(case, implementation, seen, out="placed"), case.mesh), seen)
    forward_mode, reverse_mode = MODES[kind]
    values = _ready.get(("value", implementation, _without_out(case), engine.name))
    if values is not None and values.prepared.jaxpr is not None:
        seen = values.seen
    else:
        with differentiating():  # as for values
            trace(forward(case, implementation, seen), case.mesh)
    check_results(case, seen)
    program, placements = derivatives(case, implementation, seen, forward_mode=forward_mode, reverse_mode=reverse_mode)
    with differentiating():
        with readable_errors():  # the function's own rules of derivatives
            prepared = engine.prepare(program, case.mesh)
        # the jvp of a custom_vjp traces to a primitive that nothing can run
        jaxpr = trace(program, case.mesh) if prepared.jaxpr is None else prepared.jaxpr
        if forward_mode and any(equation.primitive.name == "custom_lin" for equation in equations(jaxpr)):
            raise NotDifferentiable(NO_FORWARD_MODE)
        return Ready(prepared, seen, tuple(placements))


@contextmanager
def whole_tracebacks() -> Iterator[None]:
    """Leaves JAX's own frames in tracebacks, which distinguish its exceptions from those of a function."""
    before = getattr(jax.config, "jax_traceback_filtering")  # noqa: B009 (mypy does not know of it)
    jax.config.update("jax_traceback_filtering", "off")
    try:
        yield
    finally:
        jax.config.update("jax_traceback_filtering", before)


NO_FORWARD_MODE = "a custom_vjp has no forward mode"


@contextmanager
def differentiating() -> Iterator[None]:
    """Raises NotDifferentiable in place of what JAX raises for a derivative that it does not have.

    That is: no rule, the transpose of a while_loop, forward mode of a mapped custom_vjp, and no rule that separates
    values from derivatives, as for a custom_vmap.
    """
    try:
        with whole_tracebacks():
            yield
    except ValueError as error:
        frames = [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
        if frames[-1] is ad.primitive_transposes[lax.while_p].__code__:
            raise NotDifferentiable("a while_loop has no reverse mode") from error
        if str(error).startswith("Linearization failed") and raised_in(error).startswith("jax."):
            raise NotDifferentiable(str(error).partition(". ")[0]) from error
        raise
    except TypeError as error:
        *_, (last, _) = walk_tb(error.__traceback__)
        if last.f_code.co_name == "raise_custom_vjp_error_on_jvp" and raised_in(error).startswith("jax."):
            raise NotDifferentiable(NO_FORWARD_MODE) from error
        raise
    except NotImplementedError as error:
        if raised_in(error) == ad.JVPTrace.__module__:
            raise NotDifferentiable(str(error)) from error
        raise


def check_results(case: Case, seen: Seen) -> None:
    """Raises WrongResult unless the results' blocks have the shapes and dtypes of the oracle's."""
    zeros = [
        np.zeros((*case.mesh.sizes, *case.batch_of(i), *o.block), o.numpy_dtype) for i, o in enumerate(case.operands)
    ]
    lead = len(case.mesh.sizes)
    for i, expected in enumerate(oracle_blocks(case, zeros)):
        shape, dtype = expected.shape[lead:], np.dtype(seen.dtypes[i])
        what = case.contract.call.leaf(case, i)
        if seen.shapes[i] != shape:
            raise WrongResult(f"{what} has blocks of shape {seen.shapes[i]}: expected {shape}")
        if dtype != expected.dtype:
            raise WrongResult(f"{what} has dtype {dtype}: expected {expected.dtype}")


def all_blocks(case: Case, stacked: np.ndarray) -> np.ndarray:
    """A stacked result as blocks of the whole mesh; over axes that it is not stacked over, all are equal."""
    missing = tuple(i for i, name in enumerate(case.mesh.axis_names) if name not in stacked_axes(case))
    spread = np.expand_dims(stacked, missing)
    return np.broadcast_to(spread, (*case.mesh.sizes, *spread.shape[len(case.mesh.sizes) :]))


def placed_blocks(case: Case, array: np.ndarray, placement: Placement) -> np.ndarray:
    """A global array with the layout of its type, as blocks `[*mesh.sizes, *block]`."""
    held = divide(array, case.mesh, placement.partition())
    rank = len(case.mesh.sizes)
    block = held.shape[rank + len(placement.stacked) :]
    return np.broadcast_to(held.reshape(*held.shape[:rank], *block), (*case.mesh.sizes, *block))
