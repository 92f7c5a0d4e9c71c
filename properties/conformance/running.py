"""Runs programs: in the interpreter, by XLA with layouts and without, step by step, and by the older partitioner."""

import math
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding

from shardproof.properties.conformance import types
from shardproof.properties.conformance.known import Steps
from shardproof.properties.conformance.operations import OPERATIONS, TEMPLATES
from shardproof.properties.conformance.program import FILE, INEXACT, Program, Spec, line, source, spec_text
from shardproof.properties.conformance.programs import unsharded_scope
from shardproof.properties.engines import simulate
from shardproof.properties.engines.simulate.jaxprs import equations

LARGE = {"float32": 2**21, "complex64": 2**21, "float16": 2**11, "bfloat16": 2**8, "float8_e4m3fn": 2**4}
"""Whole numbers up to these are added and multiplied without rounding, in this dtype, even in other orders."""

PRODUCTS = r"prod|multiply|scatter_mul|lax\.mul, \[|x\[1\] \* y\[1\]"
"""The lines of operations that multiply many elements, in any order."""

ULPS, ON_THE_WAY, LEFT = 128, 32, 4
"""How many units a rounded result may be off: of its own largest element, and of the largest number on its way.

If the last of these are more than a `SHARE` of the result, it is what a cancellation has left.
"""

SHARE = 1 / 16
"""At most how much of its own largest element a right result may be off, unless `LEFT` units are more."""

SUMS = (
    *("reduce_sum", "dot_general", "scatter-add", "cumsum"),
    *("conv_general_dilated", "reduce_window_sum", "select_and_scatter_add"),
)
"""The primitives that add as many terms as their operands have elements, at most."""


class Verdict(msgspec.Struct, frozen=True):
    """The outcome of running a program.

    `kind` is *right*, *wrong*, *refused* with a clear error, *fails* with another one, *invalid* if it fails without
    layouts, *undetermined* if JAX does not say what is right or rounding hides it, or *known* if all is right once the
    steps that a known defect makes wrong are replicated.
    """

    kind: str
    detail: str = ""
    votes: dict[str, str] = {}
    known: Steps = {}
    """The steps at fault of known defects that the program may meet."""
    replicated: list[int] = []
    """The steps that were replicated before the program was run."""


class Reference(NamedTuple):
    """The right results, and how far others may be off each of them; 0: they are compared bit for bit.

    Results that are `near` are right, and those out of bounds are wrong. These differ where the right result is what is
    left of much larger numbers, which were rounded; between them nothing is said.
    """

    results: list[np.ndarray]
    bounds: Sequence[float]
    near: Sequence[float] = ()


def partition_spec(spec: Spec) -> Any:
    """The PartitionSpec of a layout."""
    entries = [jax.P.UNCONSTRAINED if one == "*" else None if one is None else tuple(one) for one in spec]
    return jax.P(*entries)


def mesh_of(program: Program) -> Mesh:
    """The devices of a program."""
    kind = AxisType.Auto if program.axes == "auto" else AxisType.Explicit
    devices = np.array(jax.devices()[: program.devices]).reshape(tuple(program.mesh.values()))
    return Mesh(devices, tuple(program.mesh), axis_types=(kind,) * len(program.mesh))


def make_scope(program: Program, *, laid: bool) -> dict[str, Any]:
    """The names that a program uses, with its layouts or without."""
    names = unsharded_scope(program.mesh)
    if not laid:
        return names
    devices = mesh_of(program)

    def constrained(x: Any, spec: Any) -> Any:
        return lax.with_sharding_constraint(x, NamedSharding(devices, spec))

    put = constrained if program.axes == "auto" else jax.reshard
    return names | {"put": put, "to": lambda spec: spec, "mesh": devices}


def build_function(program: Program, *, laid: bool, every: bool = False) -> Callable[..., Any]:
    """The function of a program or its derivative, with its layouts or without."""
    names = make_scope(program, laid=laid)
    # the text is the table's own; of what is drawn there are numbers and names in it
    exec(compile(source(program, TEMPLATES, every=every), FILE, "exec"), names)  # noqa: S102
    return names["g" if program.derivative else "f"]


def make_inputs(program: Program) -> list[np.ndarray]:
    """The inputs."""
    scope = {"np": np, "jnp": jnp}
    return [np.asarray(eval(one.text(), scope)) for one in program.inputs]  # noqa: S307 # made of numbers


def has_island(program: Program) -> bool:
    """True if a part of a program is for a mesh alone."""
    return any(name.startswith("shard_map") for name in program.operations)


def place_inputs(program: Program, mesh: Mesh, values: Sequence[np.ndarray]) -> list[jax.Array]:
    """The inputs with their layouts."""
    specs = [jax.P(*partition_spec(one.spec), reduced=set(one.reduced)) if one.reduced else partition_spec(one.spec)
             for one in program.inputs]  # fmt: skip
    return jax.device_put(list(values), [NamedSharding(mesh, spec) for spec in specs])


def output_shardings(program: Program, mesh: Mesh) -> list[NamedSharding | None]:
    """The layouts of the results, where they are stated."""
    if program.derivative:
        return [None] * len(jax.tree.leaves(jax.eval_shape(build_function(program, laid=False), *structs(program))))
    return [None if one.spec is None else NamedSharding(mesh, partition_spec(one.spec)) for one in program.outputs]


def structs(program: Program) -> list[jax.ShapeDtypeStruct]:
    """The types of the inputs, without layouts."""
    return [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in program.inputs]


def format_error(error: BaseException) -> str:
    """An error in one line."""
    first = next((text for text in str(error).splitlines() if text.strip()), "")
    return f"{type(error).__name__}: {first}"[:400]


def is_refusal(error: BaseException) -> bool:
    """True if an error says clearly that a layout is not supported."""
    name, text = type(error).__name__, str(error).lower()
    if name == "ShardingTypeError":
        return True
    clear = isinstance(error, ValueError | TypeError | NotImplementedError) and name != "DuplicateSpecError"
    return (
        clear and re.search(r"shard|mesh|invalid spec|reduced|divisible|partitionspec|replicated|@", text) is not None
    )


def trace_unsharded(program: Program) -> Any:
    """The jaxpr of a program without layouts; without a derivative it has all values of the steps as results."""
    return jax.make_jaxpr(build_function(program, laid=False, every=not program.derivative))(*structs(program))


def compute_reference(program: Program, closed: Any, values: Sequence[np.ndarray]) -> Reference | Verdict | None:
    """The right results by the interpreter, of the jaxpr without layouts; None where it lacks a rule."""
    try:
        found = simulate.interpret(closed, *values)
    except simulate.OrderDependent as error:
        return Verdict("undetermined", format_error(error))
    except Exception:  # whatever else the interpreter cannot do, XLA does without layouts
        return None
    return bound_results(program, closed, values, [np.asarray(x) for x in found])


def is_whole(x: np.ndarray) -> bool:
    """True if nothing in an array had to be rounded, whatever the order in which it was added up."""
    if str(x.dtype) not in LARGE:
        return True
    wide = x.astype(np.complex128)
    if not np.isfinite(wide).all():
        return False
    return bool((wide == np.rint(wide)).all() and np.abs(wide).max(initial=0) <= LARGE[str(x.dtype)])


def overflows(x: np.ndarray) -> bool:
    """True if the product of an array's elements is zero in one order, and NaN in another: infinity times zero."""
    if str(x.dtype) not in LARGE or (x != 0).all():
        return False
    wide = np.abs(x.astype(np.complex128))
    return bool(np.log2(wide[(wide > 1) & np.isfinite(wide)]).sum() >= jnp.finfo(x.dtype).maxexp)


def largest(x: np.ndarray) -> float:
    """The largest finite element of an array, if it is of numbers that are rounded; or 0."""
    if str(x.dtype) not in LARGE:
        return 0.0
    wide = np.abs(x.astype(np.complex128))
    return float(wide[np.isfinite(wide)].max(initial=0))


class Way(NamedTuple):
    """What a value was made of: the dtypes that something was rounded in, and the largest number."""

    dtypes: frozenset[str] = frozenset()
    peak: float = 1.0


def join_ways(ways: Iterable[Way], made: Way) -> Way:
    """What a value was made of, given that of its operands."""
    every = [*ways, made]
    return Way(frozenset[str]().union(*(one.dtypes for one in every)), max(one.peak for one in every))


def count_terms(closed: Any) -> int:
    """At most how many terms a sum of a program has."""
    sums = (equation for equation in equations(closed.jaxpr) if equation.primitive.name in SUMS)
    return max((v.aval.size for equation in sums for v in equation.invars), default=1)


def bound_result(result: np.ndarray, way: Way, terms: int) -> tuple[float, float]:
    """How far others must be off a result to be wrong, and may be off it to be right.

    A sum of so small a dtype that adding one term after the other may round more of it away is nowhere wrong below
    that: half a unit for each of the terms.
    """
    unit = min((LARGE[dtype] for dtype in way.dtypes if dtype in LARGE), default=math.inf)
    own = largest(result)
    loose, most = max(ULPS * own, ON_THE_WAY * way.peak) / unit, max(SHARE, LEFT / unit) * own
    near = min(loose, most)
    return max(loose if LEFT * way.peak / unit > most else near, terms * own / (2 * unit)), near


def bound_results(
    program: Program, closed: Any, values: Sequence[np.ndarray], found: list[np.ndarray]
) -> Reference | Verdict:
    """The right results, with how near others must come: bit for bit, if no step rounds anything.

    Arguments:
        program: the program.
        closed: its jaxpr without layouts.
        values: its inputs.
        found: its results, and without a derivative all values of its steps behind them.
    """
    # derivatives of maxima share out what came among equals: by three, too
    exact = {one.name: not program.derivative and is_whole(x) for one, x in zip(program.inputs, values, strict=True)}
    count = len(found) if program.derivative else len(program.outputs)
    arrays = dict(zip((one.name for one in program.inputs), values, strict=True))
    arrays |= zip((value.name for step in program.steps for value in step.results), found[count:], strict=False)
    follows = True

    def way(name: str, dtype: str) -> Way:
        peak = largest(arrays[name]) if name in arrays else 0.0
        return Way(frozenset() if exact[name] else frozenset({dtype}), max(1.0, peak))

    ways = {one.name: way(one.name, one.dtype) for one in program.inputs}
    for step in program.steps:
        operation = OPERATIONS[step.op]
        given = not program.derivative and all(exact[name] for name in step.operands)
        follows &= given or operation.continuous or bool(program.derivative) or len(program.steps) == 1
        if re.search(PRODUCTS, line(operation.template, step.operands, step.params)) and any(
            overflows(arrays[name]) for name in step.operands if name in arrays
        ):
            return Verdict("undetermined", "a product that may overflow before it is zero")
        for value in step.results:
            exact[value.name] = given and operation.exact and is_whole(arrays[value.name])
            ways[value.name] = join_ways((ways[name] for name in step.operands), way(value.name, value.dtype))
    if not follows:
        return Verdict("undetermined", "a rounded value decides")
    if all(exact.values()) and all(map(is_whole, found)):
        return Reference(found[:count], [0.0] * count)
    made_of = [ways[one.name] for one in program.outputs]
    if program.derivative:
        made_of = [join_ways(ways.values(), Way(peak=max(map(largest, found), default=1.0)))] * count
    terms = count_terms(closed)
    pairs = [bound_result(x, of, terms) for x, of in zip(found[:count], made_of, strict=True)]
    bounds, near = [bound for bound, _ in pairs], [near for _, near in pairs]
    return Reference(found[:count], bounds, near if near != bounds else ())


def describe_difference(right: Reference, index: int, got: np.ndarray, where: Any) -> str:
    """The first error in a part of a result; empty if there is none."""
    expected = right.results[index][where]
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"{got.dtype}{list(got.shape)}, expected {expected.dtype}{list(expected.shape)}"
    if str(got.dtype) not in INEXACT:
        wrong = got != expected
    else:
        wide, other = got.astype(np.complex128), expected.astype(np.complex128)
        with np.errstate(all="ignore"):
            same = (wide == other) | (np.isnan(wide) & np.isnan(other))
            same |= np.abs(wide - other) <= right.bounds[index]
        wrong = ~same
    if not wrong.any():
        return ""
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{int(wrong.sum())} of {wrong.size} wrong, at {first} {got[first]}, expected {expected[first]}"


def compare_results(right: Reference, results: Sequence[jax.Array], shardings: Sequence[NamedSharding | None]) -> str:
    """The first error in all shards of all results; empty if there is none."""
    if len(results) != len(right.results):
        return f"{len(results)} results, expected {len(right.results)}"
    for index, (result, sharding) in enumerate(zip(results, shardings, strict=True)):
        expected = right.results[index]
        if result.shape != expected.shape or result.dtype != expected.dtype:
            return (
                f"result {index}: {result.dtype}{list(result.shape)}, expected {expected.dtype}{list(expected.shape)}"
            )
        if sharding is not None and not result.sharding.is_equivalent_to(sharding, result.ndim):
            return f"result {index}: layout {result.sharding}, expected {sharding}"
        if not result.size:
            continue
        for shard in result.addressable_shards:
            if text := describe_difference(right, index, np.asarray(shard.data), shard.index):
                return f"result {index} on device {shard.device.id}: {text}"
    return ""


def judge_results(
    right: Reference, results: Sequence[jax.Array], shardings: Sequence[NamedSharding | None], wrong_type: str = ""
) -> Verdict:
    """The verdict on all results."""
    if text := compare_results(right, results, shardings) or wrong_type:
        return Verdict("wrong", text)
    if right.near:
        text = compare_results(right._replace(bounds=right.near), results, shardings)
    return Verdict("undetermined" if text else "right", text and f"left of much larger numbers: {text}")


class Traced(NamedTuple):
    """A program made ready for a pack."""

    program: Program
    closed: Any
    arguments: list[jax.Array]
    shardings: list[NamedSharding | None]
    wrong_type: str = ""


def trace_program(program: Program, values: Sequence[np.ndarray]) -> Traced:
    """A program traced with its layouts.

    Raises:
        Exception: if JAX refuses it.
    """
    mesh = mesh_of(program)
    shardings = output_shardings(program, mesh)
    with jax.set_mesh(mesh):
        arguments = place_inputs(program, mesh, values)
        closed = jax.jit(build_function(program, laid=True)).trace(*arguments).jaxpr
        if program.axes == "explicit":
            shardings = [aval.sharding if aval.ndim and not aval.sharding.mesh.empty else None
                         for aval in closed.out_avals]  # fmt: skip
            shardings = [None if s is None else NamedSharding(mesh, s.spec) for s in shardings]
    return Traced(program, closed, arguments, shardings, wrong_type(program, closed))


def wrong_type(program: Program, closed: Any) -> str:
    """The error in the layout that a single operation's result is typed with; empty if there is none."""
    right = types.expected(program)
    if right is None:
        return ""
    found = closed.out_avals[0].sharding.spec
    return "" if types.plain(found) == types.plain(right) else f"result 0: type {found}, expected {spec_text(right)}"


@cache
def quick_options() -> dict[str, bool]:
    """The options that let XLA compile programs of many small parts three times as fast, where it has them."""
    options = {"xla_cpu_use_fusion_emitters": False}
    try:
        jax.jit(lambda: 1, compiler_options=options).lower().compile()
    except Exception:  # another version, or another platform
        return {}
    return options


def run_pack(pack: Sequence[Traced], *, quick: bool = False) -> list[list[jax.Array]]:
    """The results of programs of one mesh, compiled as one.

    Raises:
        Exception: if XLA cannot.
    """
    counts = [len(one.arguments) for one in pack]

    def together(*flat: Any) -> list[Any]:
        results, at = [], 0
        for one, count in zip(pack, counts, strict=True):
            results.append(jax.extend.core.jaxpr_as_fun(one.closed)(*flat[at : at + count]))
            at += count
        return results

    flat = [argument for one in pack for argument in one.arguments]
    donated = [one.program.donated for one in pack for _ in one.arguments]
    explicit = pack[0].program.axes == "explicit"
    out = None if explicit else [one.shardings for one in pack]
    with jax.set_mesh(mesh_of(pack[0].program)), warnings.catch_warnings():
        options = quick_options() if quick else {}
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        donate = [i for i, given in enumerate(donated) if given]
        run = jax.jit(together, out_shardings=out, donate_argnums=donate, compiler_options=options)
        return jax.block_until_ready(run(*flat))
