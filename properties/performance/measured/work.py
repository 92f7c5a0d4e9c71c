"""What is measured together: the forms of one contract at one shape, on the same devices and the same numbers."""

import dataclasses
import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case
from shardproof.properties.performance.measured.placing import DATA, MODEL, placed
from shardproof.properties.performance.measured.row import Row, Wrong, exact, expected, real, traffic, wrong
from shardproof.properties.performance.modelled import alone, sides
from shardproof.properties.performance.shaped import shaped
from shardproof.properties.performance.tables import form_of
from shardproof.properties.programs.built_in import ALGORITHMS, BUILT_IN, OVERLAPPED, PRODUCTS
from shardproof.properties.programs.examples import SHAPES, SHARDED, WHOLE, product_case
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import Seen, forward

Clock = Callable[[], float]
"""Seconds, from whenever."""

ROUNDS = 11
"""How often each is measured: an odd number has one in the middle."""

LEAST = 0.02
"""The seconds that one measurement takes at least: hundreds of times what it takes to launch a program."""

MOST_CALLS = 32
"""The most calls in one measurement, each of which may hold its results until all are over."""


def medians(
    functions: Mapping[str, Callable[[], Any]],
    *,
    clock: Clock = time.perf_counter,
    rounds: int = ROUNDS,
    least: float = LEAST,
) -> dict[str, float]:
    """The median of the seconds that a call of each takes.

    Each is called once before, which compiles it. Then every round measures all of them, each round beginning with
    another one, so that none always comes after the same. In one measurement a function is called as often in a row as
    the slowest needs for `least` seconds, and the last result is waited for.

    Arguments:
        functions: by name; each gives what can be waited for.
        clock: what tells the time.
        rounds: how many measurements of each.
        least: see above.

    Returns:
        Seconds of a call by name, in the order of `functions`.

    Raises:
        ValueError: if there is nothing to measure, or no round.
    """
    if not functions or rounds < 1:
        raise ValueError(f"functions={list(functions)}, rounds={rounds}: expected at least one of each")
    for function in functions.values():
        jax.block_until_ready(function())
    slowest = max(_seconds(function, 1, clock) for function in functions.values())
    calls = min(MOST_CALLS, max(1, math.ceil(least / slowest))) if slowest > 0 else MOST_CALLS
    names = list(functions)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            taken[name].append(_seconds(functions[name], calls, clock) / calls)
    return {name: statistics.median(times) for name, times in taken.items()}


def _seconds(function: Callable[[], Any], calls: int, clock: Clock) -> float:
    start, result = clock(), None
    for _ in range(calls):
        result = function()
    jax.block_until_ready(result)
    return clock() - start


UNSHARDED, NAIVE, BUILT_IN_FORM = "unsharded", "naive", "lax"

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "ring_shift")
"""The collectives that are measured: what nccl-tests has a definition for; a shift is its sendrecv."""

MEASURED = (*COLLECTIVES, *SHARDED)

ROWS, COLUMNS = 16384, 1024
"""The full vector of a collective, in float32: 64 MiB, where bandwidth and not latency decides."""


@dataclasses.dataclass(frozen=True)
class Form:
    """One function in one case.

    Arguments:
        name: what its row is called.
        implementation: the function.
        case: what it is called with.
        alone: whether it sends nothing: the product of one device that the others are held against.
    """

    name: str
    implementation: Implementation
    case: Case
    alone: bool = False


def forms(
    contract: str, mesh: MeshCase, *, more: Sequence[Implementation] = (), size: tuple[int, ...] | None = None
) -> list[Form]:
    """What is measured of a contract: all forms of this project's own, or the plain ones and these.

    Arguments:
        contract: one of `MEASURED`.
        mesh: of the axes `data` and `model`; it runs over the second.
        more: a user's implementations, in place of this project's but for the naive form or the built-in collective.
        size: rows, contracted size and columns of the whole product (default: the shape that is called wide), or rows
            and columns of a collective's full vector; a few more, where they do not divide by the devices.

    Raises:
        ValueError: of another contract.
    """
    if contract not in MEASURED:
        raise ValueError(f"contract={contract!r}: expected one of {', '.join(MEASURED)}")
    if contract in COLLECTIVES:
        case = collective_case(contract, mesh, *(size or (ROWS, COLUMNS)))
        return _named(case, [*_of(contract, BUILT_IN), *(more or _of(contract, ALGORITHMS))])
    m_k_n = sides(contract, _fitting(size or SHAPES["wide"], mesh), mesh.shape[DATA], mesh.shape[MODEL])
    case = product_case(contract, mesh, MODEL, m_k_n, dtype="bfloat16")
    (naive,) = _of(contract, PRODUCTS)
    whole = alone(contract, m_k_n, mesh.shape[MODEL])
    one_each = MeshCase(mesh.axis_names, (mesh.size, 1))
    local = Form(UNSHARDED, naive, product_case(contract, one_each, MODEL, whole, dtype="bfloat16"), alone=True)
    return [local, *_named(case, [naive, *(more or _of(contract, OVERLAPPED))])]


def collective_case(contract: str, mesh: MeshCase, rows: int, columns: int) -> Case:
    """A collective's case over the model axis; its full vector has so many rows, or a few more, and columns."""
    p = mesh.shape[MODEL]
    rows = p * -(-rows // p)
    gathered = contract == "all_gather"
    whole = rows if gathered else rows * p
    assert gathered or contract in (*WHOLE, "broadcast", "ring_shift")
    return shaped(contract, mesh, MODEL, [(whole, columns)], "float32")


def _of(contract: str, implementations: Sequence[Implementation]) -> list[Implementation]:
    return [one for one in implementations if one.contract.name == contract]


def _named(case: Case, implementations: Sequence[Implementation]) -> list[Form]:
    """Those that serve a case, by names that differ: a user's function may have the name of a plain one."""
    found: dict[str, Form] = {}
    for one in implementations:
        if one.serves is None or one.serves(case):
            own = form_of(one) or one.name
            names = itertools.chain([own], (f"{own} ({i})" for i in itertools.count(2)))
            name = next(name for name in names if name not in (UNSHARDED, *found))
            found[name] = Form(name, one, case)
    return [*found.values()]


def _fitting(size: tuple[int, ...], mesh: MeshCase) -> tuple[int, int, int]:
    """These sides, or a few more, so that they divide by the devices."""
    rows, contracted, columns = (mesh.size * -(-side // mesh.size) for side in size)
    return rows, contracted, columns


def measure(
    forms: Sequence[Form],
    devices: Sequence[Any],
    *,
    clock: Clock = time.perf_counter,
    trace: Callable[[str], Any] | None = None,
    **how: Any,
) -> dict[str, Row]:
    """The row of every form, in one run: first what is wrong of each, then how long all of them take, in turns.

    Arguments:
        forms: of one contract.
        devices: JAX's, as many as the mesh has.
        clock: what tells the time.
        trace: given a form's name, a context in which its function is called once more.
        **how: as `medians` takes it.

    Raises:
        NotImplementedError: what a function raises of a case that it does not serve.
    """
    functions: dict[str, Callable[[], Any]] = {}
    checked: dict[str, Wrong] = {}
    held: dict[str, tuple[list[np.ndarray], list[np.ndarray]]] = {}
    for form in forms:
        mesh = placed(form.case.mesh, devices)
        function, layouts = built(form, mesh)
        key = str(form.case)
        if key not in held:
            numbers = exact(form.case)
            held[key] = numbers, expected(form.case, numbers)
        numbers, right = held[key]
        results = function(*jax.device_put(numbers, layouts))
        checked[form.name] = wrong(form.case, [np.asarray(result) for result in results], right)
        functions[form.name] = functools.partial(function, *jax.device_put(real(form.case), layouts))
    seconds = medians(functions, clock=clock, **how)
    if trace is not None:
        for name, call in functions.items():
            with trace(name):
                jax.block_until_ready(call())
    return {form.name: _row(form, seconds[form.name], checked[form.name]) for form in forms}


def built(form: Form, mesh: Mesh) -> tuple[Any, list[NamedSharding]]:
    """A form as a compiled function of global arrays, and how they are laid out."""
    program = forward(form.case, form.implementation, Seen())
    layouts = [NamedSharding(mesh, argument.partition_spec) for argument in program.arguments]
    return jax.jit(program.build(mesh)), layouts


def _row(form: Form, seconds: float, wrong: Wrong) -> Row:
    case = form.case
    dtypes = {operand.dtype for operand in case.operands}
    shapes = ["x".join(map(str, case.global_shape(i))) for i in range(len(case.operands))]
    arrays = f"{'/'.join(sorted(dtypes))} {' '.join(shapes)}"
    return Row(case.contract.name, form.name, arrays, seconds, None if form.alone else traffic(case), wrong)


def tracing(folder: str | None, contract: str) -> Callable[[str], Any] | None:
    """What `measure` traces forms with: JAX's profile of each goes to `folder/contract/form`, for xprof or Perfetto."""
    if folder is None:
        return None
    return lambda form: jax.profiler.trace(str(Path(folder) / contract / form))


def by_speed(rows: Mapping[str, Row], *, without: Sequence[str] = (UNSHARDED, NAIVE, BUILT_IN_FORM)) -> list[str]:
    """The forms from the fastest on, but for those that they are held against."""
    return sorted((name for name in rows if name not in without), key=lambda name: rows[name].seconds)
