"""Evaluates jaxprs with the table of rules; traces functions, and runs their programs on as many data sets as wanted.

No result may depend on what JAX leaves undetermined, even if one machine always decides it the same way:

- the contents of `jnp.empty` and `lax.empty`: zeros on XLA:CPU, anything on an accelerator;
- the order of two updates of one place by a scatter ("they may be applied in any order", `jax.lax.scatter`), and
  whether both are applied, where `unique_indices` promised that there are no two;
- reads and writes by unsorted indices where `indices_are_sorted` promised sorted ones: here, those of sorted indices.

A program that meets one of these runs twice, with two different contents, or orders. A result that differs depends on
it. What is overwritten or selected away does not matter.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import dtypes
from jax.extend import core
from jax.interpreters.partial_eval import dce_jaxpr
from jaxtyping import PyTree

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.simulate.env import RULES, SETS, Choice, Env, Found, Left, Record, Recorder
from shardproof.properties.engines.simulate.errors import (
    OF_THE_PROGRAM,
    CollectiveMismatch,
    InterpreterLimit,
    OrderDependent,
    SimulationError,
    UnknownPrimitive,
    UnwrittenRead,
    location,
    raised_in,
)
from shardproof.properties.engines.simulate.exchange import device_name, nan_equal
from shardproof.properties.engines.simulate.jaxprs import (
    ADD_UP,
    CHOOSE,
    Choices,
    equations,
    open_jaxpr,
    variables,
    widest,
)


def called_jaxpr(equation: Any) -> Any:
    """The jaxpr that a call names."""
    (name,) = {"jaxpr", "call_jaxpr", "call", "callee"} & equation.params.keys()
    return equation.params[name]


def key_dtype(words: int) -> np.dtype:
    """The dtype of a random key as one element, so that rules about shapes need no case for keys."""
    return np.dtype([("key", np.uint32, (words,))])


def held_as(aval: Any) -> np.dtype:
    """The NumPy dtype of a value of a traced type."""
    return aval.dtype if isinstance(aval.dtype, np.dtype) else key_dtype(*aval.dtype._impl.key_shape)


def as_value(x: Any) -> np.ndarray:
    """An array, a scalar or a random key of JAX's, as NumPy."""
    if isinstance(x, jax.Array) and dtypes.issubdtype(x.dtype, dtypes.prng_key):
        words = np.asarray(jax.random.key_data(x))
        return np.ascontiguousarray(words).view(key_dtype(words.shape[-1]))[..., 0]
    return np.asarray(x)


_LAST_READS: weakref.WeakKeyDictionary[Any, list[list[Any]]] = weakref.WeakKeyDictionary()


def last_reads(body: Any) -> list[list[Any]]:
    """For each equation of an open jaxpr, the variables that it reads or makes, and that nothing needs afterwards."""
    if body not in _LAST_READS:
        read, ends = {*variables(body.outvars)}, []
        for equation in reversed(body.eqns):
            own = dict.fromkeys(variables((*equation.invars, *equation.outvars)))
            ends.append([v for v in own if v not in read])
            read.update(ends[-1])
        _LAST_READS[body] = ends[::-1]
    return _LAST_READS[body]


def constant(env: Env, value: np.ndarray) -> np.ndarray:
    """A constant of a program, behind the leading dimensions."""
    own = value[None] if env.arithmetic is None else env.arithmetic.constant(value)
    lead = (len(own), *(1,) * (env.lead - 1)) if env.lead else ()
    return own.reshape(lead + value.shape)


def run(env: Env, equation: Any, operands: list[np.ndarray]) -> Sequence[np.ndarray]:
    """The results of one equation; raises SimulationError for another shape or dtype than was traced."""
    name, arithmetic = equation.primitive.name, env.arithmetic
    if name not in RULES:
        raise UnknownPrimitive(name, location(equation))
    if env.choices is not None and name in CHOOSE:
        env.choices.note(env, equation, operands)
    elif env.choices is not None and name in ADD_UP:
        env.choices.note_sum(env, equation, *operands)
    if arithmetic is None:
        found = RULES[name](env, equation, *operands)
    else:
        found = arithmetic.run(env, RULES[name], equation, operands)
    results = (found,) if isinstance(found, np.ndarray) else found
    for variable, value in zip(equation.outvars, results, strict=True):
        shape, dtype = tuple(variable.aval.shape), held_as(variable.aval)
        dtype = dtype if arithmetic is None else arithmetic.held(dtype)
        if value.shape[env.lead :] != shape or value.dtype != dtype or value.ndim != env.lead + len(shape):
            raise SimulationError(
                f"the rule of {name!r} returned {value.dtype}{list(value.shape[env.lead :])} where "
                f"{dtype}{list(shape)} was traced, at {location(equation)}"
            )
    return results


def evaluate(env: Env, jaxpr: Any, args: Sequence[np.ndarray], rounds: Sequence[int] | None = None) -> list[np.ndarray]:
    """The results of a jaxpr on operands `[*lead, *block]`.

    Arguments:
        rounds: for the recorder, if there is one: the rounds after which each operand is known. Without it, everything
            in the jaxpr waits for all operands of the current equation.
    """
    body, consts = open_jaxpr(jaxpr)
    values = dict(zip(body.invars, args, strict=True))
    values |= {v: constant(env, as_value(c)) for v, c in zip(body.constvars, consts, strict=bool(consts))}
    recorder = env.recorder
    start = recorder.round if recorder is not None and rounds is None else 0
    known = dict(zip(body.invars, rounds or (), strict=False))

    def read(atom: Any) -> np.ndarray:
        if isinstance(atom, core.Literal):
            return constant(env, np.asarray(atom.val, held_as(atom.aval)))
        return values[atom]

    def round_of(atom: Any) -> int:
        return start if isinstance(atom, core.Literal) else known.get(atom, start)

    for equation, ends in zip(body.eqns, last_reads(body), strict=True):
        if recorder is not None:
            recorder.begin([round_of(atom) for atom in equation.invars], start)
        values.update(zip(equation.outvars, run(env, equation, [read(atom) for atom in equation.invars]), strict=True))
        if recorder is not None:
            known.update(zip(equation.outvars, recorder.end(len(equation.outvars)), strict=True))
        for variable in ends:
            del values[variable]
    if recorder is not None:
        recorder.results = [round_of(atom) for atom in body.outvars]
        recorder.round = max(recorder.results, default=recorder.round)
    return [read(atom) for atom in body.outvars]


def first_difference(one: np.ndarray, other: np.ndarray) -> tuple[int, ...] | None:
    """The first place at which two arrays of the same shape differ, NaN for NaN."""
    differing = np.argwhere(~nan_equal(one, other))
    return tuple(int(i) for i in differing[0]) if len(differing) else None


UNDETERMINED: dict[Choice, tuple[type[SimulationError], str, str]] = {
    "contents": (UnwrittenRead, "memory that was never written", "allocated"),
    "sorting": (OrderDependent, "indices that are not sorted, and indices_are_sorted promised it", "used"),
    "order": (OrderDependent, "which of two updates of one place a scatter applies last", "scattered"),
}
"""The error of a program whose result depends on a choice, on what it depends, and what is done there."""


def check_determined(
    choice: Choice,
    found: Sequence[Any],
    results: Sequence[np.ndarray],
    again: Sequence[np.ndarray],
    left: Callable[[Choice | None], Left],
) -> None:
    """Raises UnwrittenRead or OrderDependent if the results depend on a choice.

    Arguments:
        choice: what is undetermined.
        found: the equations in which it is.
        results: the program's results for one choice.
        again: those for the other.
        left: the blocks that the program's `shard_map`s leave, for the other choice or for the first (None).
    """
    kind, cause, used = UNDETERMINED[choice]
    if choice == "order":
        promised = any(equation.params["unique_indices"] for equation in found)
        cause += ", and unique_indices promised that there are no two" if promised else ", which may be either"
    for number, (one, other) in enumerate(zip(results, again, strict=True)):
        at = first_difference(one, other)
        if at is not None:
            values = f"element {list(at)} is {one[at]} or {other[at]}"
            values += ", as that memory is" if choice == "contents" else ""
            device, places = first_device(left(None), left(choice)), ", ".join(dict.fromkeys(map(location, found)))
            raise kind(f"result {number} depends on {cause}: {values}{device}; {used} at {places}")


def first_device(one: Left, other: Left) -> str:
    """The first device whose block differs between the runs, for a message; empty if no block does."""
    for (mesh, x), (_, y) in zip(one, other, strict=False):
        at = first_difference(*np.broadcast_arrays(x, y))
        if at is not None:
            rank = len(mesh.sizes)
            return f", first on device {device_name(mesh, at[:rank])} in element {list(at[rank:])} of its block"
    return ""


Meshes = jax.sharding.Mesh | jax.sharding.AbstractMesh


Sets = Sequence[Sequence[np.ndarray]]
"""Data sets, each of one global array per argument."""


class Prepared:
    """A traced or compiled program: global arrays in, global arrays out.

    Arguments:
        run: runs it.
        jaxpr: its trace; None if every run traces it again.

    Raises:
        UnexpectedTracerError: if the program has an array of another trace, which has ended.
    """

    def __init__(self, run: Callable[[Sequence[np.ndarray]], list[np.ndarray]], jaxpr: Any = None) -> None:
        for constant in () if jaxpr is None else jaxpr.consts:
            if isinstance(constant, jax.core.Tracer):
                jax.jit(lambda x: x)(constant)  # JAX's own error says what was traced
        self._run = run
        self.jaxpr = jaxpr
        self.choices = Choices(jaxpr)  # of its runs, where it is interpreted

    def __call__(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The results in the dtypes that were traced."""
        return self._run(arrays)

    def evidence(self, arrays: Sequence[np.ndarray]) -> Record | str:
        """The record of a run on these global arrays, or the compiled text, for counting collectives."""
        raise NotImplementedError("a function that is not under jit is not one program")

    def select_results(self, wanted: Sequence[bool]) -> "Prepared":
        """The program of these results, and only what they need."""
        raise NotImplementedError("a function that is not under jit is not one program")

    def since(self, place: int) -> "Prepared":
        """The program of the results from this place on."""
        return self.select_results([i >= place for i in range(len(self.jaxpr.out_avals))])


OWN = ("shardproof.properties.engines.simulate.", "shardproof.properties.precision.")
"""The modules of the interpreter's rules, and of their runs on doubles."""


@contextlib.contextmanager
def failing_as_a_limit() -> Iterator[None]:
    """Raises InterpreterLimit in place of an error of the interpreter's own, which says nothing about the program."""
    try:
        yield
    except OF_THE_PROGRAM:
        raise
    except Exception as error:
        if not raised_in(error).startswith(OWN):
            raise
        first = str(error).partition("\n")[0]
        what = f"this program, for an error of its own ({type(error).__name__}: {first})"
        raise InterpreterLimit(f"the interpreter cannot run {what}", what) from error


def interpret(
    closed_jaxpr: Any, *args: Any, record: Recorder | None = None, choices: Choices | None = None
) -> list[np.ndarray]:
    """The results of a closed jaxpr, in NumPy, for all devices of its meshes together.

    Arguments:
        closed_jaxpr: as `jax.make_jaxpr` returns it.
        *args: one global array per argument of the jaxpr.
        record: if given, collects the executed collectives.
        choices: if given, collects the sides of choices that are taken.

    Raises:
        UnknownPrimitive: if a primitive has no rule.
        CollectiveMismatch: if devices of one group disagree about their next collective.
        UnequalReplicas: if a result that is typed invariant along a mesh axis differs along it.
        RaggedMetadata: if the metadata of a `ragged_all_to_all` contradicts itself.
        UnwrittenRead: if a result depends on memory that was allocated and never written.
        OrderDependent: if it depends on the order of two updates of one place, or on unsorted indices that are promised
            to be sorted.
    """
    values = [as_value(x) for x in args]

    def left(other: Choice | None) -> Left:
        blocks: Left = []
        evaluate(Env(left=blocks, other=other), closed_jaxpr, values)
        return blocks

    with np.errstate(all="ignore"):  # as in XLA, infinities and wrapping are no errors
        found: Found = {}
        results = evaluate(Env(recorder=record, found=found, choices=choices), closed_jaxpr, values)
        for choice in dict.fromkeys(choice for choice, _ in found):
            again = evaluate(Env(other=choice), closed_jaxpr, values)
            own = [equation for (open_, _), equation in found.items() if open_ == choice]
            check_determined(choice, own, results, again, left)
        return results


def check_that_all_meet(closed_jaxpr: Any, arrays: Sequence[np.ndarray]) -> None:
    """Raises CollectiveMismatch if the interpreter finds a deadlock."""
    try:
        interpret(closed_jaxpr, *arrays)
    except CollectiveMismatch:
        raise
    except Exception:  # any other error of the program shows in its run
        return


def beside(count: int) -> Env:
    """The environment of a program that runs on `count` data sets at once: one more axis, which no program names."""
    return Env(mesh=MeshCase((SETS,), (count,)), lead=1)


class Simulated(Prepared):
    """A traced program.

    Arguments:
        closed_jaxpr: the program.
        structure: the tree of its results; None for a list.
    """

    def __init__(self, closed_jaxpr: Any, structure: Any = None) -> None:
        super().__init__(self._run_one, closed_jaxpr)
        self.closed_jaxpr = closed_jaxpr
        self.structure = jax.tree.structure(list(closed_jaxpr.out_avals)) if structure is None else structure

    def _run_one(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        with failing_as_a_limit():
            return [np.asarray(result) for result in jax.tree.leaves(self.run(*arrays))]

    def select_results(self, wanted: Sequence[bool]) -> "Simulated":
        """The program of these results."""
        return Simulated(select_results(self.jaxpr, wanted))

    def evidence(self, arrays: Sequence[np.ndarray]) -> Record:
        """The record of a run, without what nothing reads and `jit` would not run."""
        with failing_as_a_limit():
            return self.live().run_recorded(*arrays)[1]

    def run(self, *args: PyTree, record: Recorder | None = None) -> PyTree:
        """The results on one data set, a tree of ndarrays; raises what `interpret` does."""
        values = [as_value(leaf) for leaf in jax.tree.leaves(args)]
        results = interpret(self.closed_jaxpr, *self.typed(values), record=record, choices=self.choices)
        return jax.tree.unflatten(self.structure, results)

    @property
    def equations(self) -> list[Any]:
        """All equations that something reads, including those of inner programs."""
        return [*equations(self.live().closed_jaxpr)]

    @functools.cached_property
    def numbers(self) -> dict[int, int]:
        """The number of each equation, by its identity, inner programs included."""
        return {id(equation): i for i, equation in enumerate(equations(self.closed_jaxpr))}

    @functools.cached_property
    def width(self) -> int:
        """The most numbers of one value, on all devices together."""
        return widest(self.closed_jaxpr)

    def typed(self, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Arguments in the dtypes that were traced; raises TypeError if their shapes are others."""
        avals = self.closed_jaxpr.in_avals
        shapes, traced = [v.shape for v in values], [tuple(a.shape) for a in avals]
        if shapes != traced:
            raise TypeError(f"args: shapes {shapes}: expected {traced}, as traced")
        return [v.astype(held_as(a), copy=False) for v, a in zip(values, avals, strict=True)]

    def run_recorded(self, *args: PyTree) -> tuple[PyTree, Record]:
        """The results on one data set, and the record of the run."""
        recorder = Recorder()
        return self.run(*args, record=recorder), recorder.record

    def live(self) -> "Simulated":
        """The same program without what nothing reads, as `jit` would run it."""
        return self._live

    @functools.cached_property
    def _live(self) -> "Simulated":  # cached, since equations are identified by `id`
        return Simulated(select_results(self.closed_jaxpr, [True] * len(self.closed_jaxpr.out_avals)), self.structure)


def select_results(closed_jaxpr: Any, wanted: Sequence[bool]) -> Any:
    """The closed jaxpr of some of the results, with all arguments, without what they do not need."""
    jaxpr, _ = dce_jaxpr(closed_jaxpr.jaxpr, list(wanted), True)
    return core.ClosedJaxpr(jaxpr, closed_jaxpr.consts)


def of_set(x: np.ndarray, index: int) -> Any:
    """The part of one data set, of a result that is held once if it is the same for all."""
    return x[min(index, len(x) - 1)]


def prepare(fn: Callable[..., Any], *avals: PyTree, mesh: Meshes | None = None) -> Simulated:
    """Traces `fn` without devices.

    Arguments:
        fn: any traceable function; it may contain `jax.shard_map`.
        *avals: its arguments, or `jax.ShapeDtypeStruct`s in their place. On a mesh with Explicit
            axes these carry `sharding=NamedSharding(abstract_mesh, spec)`.
        mesh: if given, the mesh to trace under, for functions that take it from the context.
    """
    abstract = mesh.abstract_mesh if isinstance(mesh, jax.sharding.Mesh) else mesh
    context = contextlib.nullcontext() if abstract is None else jax.sharding.use_abstract_mesh(abstract)
    with context:
        closed, shapes = jax.make_jaxpr(fn, return_shape=True)(*avals)
    return Simulated(closed, jax.tree.structure(shapes))


def simulate(fn: Callable[..., Any], *args: PyTree, mesh: Meshes | None = None) -> PyTree:
    """`fn(*args)` on all devices of its meshes, without any: traced, and interpreted in NumPy.

    Arguments:
        fn: any traceable function; it may contain `jax.shard_map` over a mesh of any size, of which
            only axis names and sizes matter.
        *args: trees of global arrays.
        mesh: if given, the mesh to trace under.

    Returns:
        The results, as a tree of ndarrays.

    Raises:
        Exception: what tracing raises, and what `interpret` does.

    Example:
        mesh = jax.sharding.AbstractMesh((4096,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        total = jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P())
        simulate(total, np.ones(4096, np.float32))  # array([4096.], dtype=float32)
    """
    return prepare(fn, *args, mesh=mesh).run(*args)
