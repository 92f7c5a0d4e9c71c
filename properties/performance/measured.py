"""Measurements of the forms of one contract at one shape, on the same devices and the same numbers."""

import dataclasses
import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from rich.table import Table

from shardproof.oracles.dtypes import exact_limit
from shardproof.oracles.layout import device_name, nan_equal
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data, generate
from shardproof.properties.communication.counted import full_bytes, lower_bound
from shardproof.properties.contracts.numbers import is_moved, operands
from shardproof.properties.engines.engine import all_blocks
from shardproof.properties.performance import tables
from shardproof.properties.performance.chips import CHIPS, Chip
from shardproof.properties.performance.compiled import UNSHARDED, product_on
from shardproof.properties.performance.shaped import shaped_case
from shardproof.properties.performance.tables import form_of
from shardproof.properties.programs.built_in import ALGORITHMS, BUILT_IN, OVERLAPPED, PRODUCTS
from shardproof.properties.programs.examples import SHAPES, SHARDED, received
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import Seen, forward
from shardproof.properties.programs.transformations import oracle_blocks

KINDS = {
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU7x": "tpu7x",
}
"""The names in `CHIPS` by JAX's device kind, in libtpu 0.0.42; that of v5p differs on some machines."""

DATA, MODEL = "data", "model"
PARTICIPANTS = 4
"""The size of the model axis if there are enough devices: most machines have a ring of four chips."""


def chip_of(device: Any) -> Chip | None:
    """The published chip of a device, or None."""
    kind = str(device.device_kind)
    if kind.startswith("NVIDIA H100") and "PCIe" not in kind:
        return CHIPS["h100"]
    return CHIPS[KINDS[kind]] if kind in KINDS else None


def mesh_of(devices: int) -> MeshCase:
    """A mesh of N devices: four, or fewer, along the model axis, and the others along the data axis."""
    model = next(p for p in (PARTICIPANTS, 3, 2, 1) if devices % p == 0)
    model = devices if model < 3 and devices > 1 else model
    return MeshCase((DATA, MODEL), (devices // model, model))


class Traffic(NamedTuple):
    """The bytes by which a collective, or a product, is measured."""

    size: Fraction  # S of nccl-tests
    bus: Fraction  # the least that each device sends


def traffic(case: Case) -> Traffic:
    """The traffic of a case."""
    p = case.participants
    if case.contract.name in SHARDED:
        bus = received(case)
        of_one = Fraction(2 if case.contract.name == "matmul_all_reduce" else 1) * Fraction(p - 1, p)
        return Traffic(bus / of_one if p > 1 else Fraction(0), bus)
    size = full_bytes(case)
    return Traffic(Fraction(size), lower_bound(case.contract.name, p, size).bytes)


TABLE = ("contract", "form", "of", "us", "algorithm GB/s", "bus GB/s", "wrong", "elements")


@dataclass(frozen=True)
class Wrong:
    """The wrong elements of all devices' results."""

    count: int
    elements: int  # the right ones included
    first: str = ""  # the first of them with its right value; empty if there is none


@dataclass(frozen=True)
class Row:
    """One form of a contract at one shape, on some devices."""

    contract: str
    form: str
    arrays: str  # dtype and global shape of each operand
    seconds: float  # the median of its times
    traffic: Traffic | None  # None: the product of one device, which sends nothing
    wrong: Wrong

    @property
    def algorithm(self) -> float:
        """The algorithm bandwidth, in bytes a second."""
        return float(self.traffic.size) / self.seconds if self.traffic is not None else 0.0

    @property
    def bus(self) -> float:
        """The bus bandwidth, in bytes a second."""
        return float(self.traffic.bus) / self.seconds if self.traffic is not None else 0.0

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of its columns in `TABLE`."""
        rates = [f"{rate / 1e9:.3g}" if self.traffic is not None else "-" for rate in (self.algorithm, self.bus)]
        counts = (f"{self.wrong.count:,}", f"{self.wrong.elements:,}")
        return (self.contract, self.form, self.arrays, f"{1e6 * self.seconds:.4g}", *rates, *counts)


def table(rows: Sequence[Row], title: str = "") -> Table:
    """The rows for a terminal."""
    return tables.table(title, TABLE, [row.cells for row in rows], left=3)


CONTRACTED: dict[str, tuple[int | None, ...]] = {"transformer_block": (-1, None, 0)}
"""The contracted dimension of each operand of a product, along which most elements are zero."""


def real(case: Case) -> list[np.ndarray]:
    """Ordinary numbers: a device that is limited by its power multiplies zeros faster."""
    return [generate(Data("real", 0), case.global_shape(i), o.numpy_dtype) for i, o in enumerate(case.operands)]


def exact(case: Case) -> list[np.ndarray]:
    """Small integers whose sums are exact in their dtype; distinct numbers if nothing is summed.

    Operands of products have at most as many nonzero contracted elements as the largest exact integer of their dtype,
    so that all partial sums are exact, in any order and dtype.
    """
    if case.contract.name not in SHARDED:
        return operands(case, Data("distinct" if is_moved(case.structure) else "exact", 0))
    along: tuple[int | None, ...] = CONTRACTED.get(case.contract.name, (-1, None))
    sums = sum(axis is not None for axis in along)  # one product after the other
    most = math.floor(exact_limit(case.operands[0].numpy_dtype) ** (1 / sums) + 1e-9)
    found = []
    for i, axis in enumerate(along):
        dtype = case.operands[i].numpy_dtype
        units = np.random.default_rng(i).choice(np.array([-1, 1]), case.global_shape(i)).astype(dtype)
        found.append(units if axis is None else sparsen(units, axis, most))
    return found


def sparsen(array: np.ndarray, axis: int, most: int) -> np.ndarray:
    """A matrix with at most N nonzero elements along an axis, at other places in each line."""
    every = math.ceil(array.shape[axis] / most)
    rows, columns = array.shape
    places = np.arange(rows)[:, None] + np.arange(columns)
    return np.where(places % every == 0, array, np.zeros((), array.dtype))


def count_wrong(case: Case, results: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> Wrong:
    """The wrong elements; all, if the shape or dtype is wrong."""
    count, elements, first, lead = 0, 0, "", len(case.mesh.sizes)
    for result, blocks in zip(results, right, strict=True):
        held = all_blocks(case, result)
        elements += blocks.size
        if held.shape != blocks.shape or held.dtype != blocks.dtype:
            types = [f"{array.dtype} blocks of shape {array.shape[lead:]}" for array in (held, blocks)]
            count, first = count + blocks.size, first or f"{types[0]}: expected {types[1]}"
            continue
        off = ~nan_equal(held, blocks)
        count += int(off.sum())
        if off.any() and not first:
            at = tuple(np.argwhere(off)[0].tolist())
            where = f"element {[*at[lead:]]} on device {device_name(case.mesh, at[:lead])}"
            first = f"the first: {where} is {held[at]}, expected {blocks[at]}"
    return Wrong(count, elements, first)


Clock = Callable[[], float]
"""Seconds from any start."""

ROUNDS = 11
"""The number of measurements of each; odd, for a median."""

LEAST = 0.02
"""The least seconds of one measurement: hundreds of times those of a launch."""

MOST_CALLS = 32
"""The most calls in one measurement; each may hold its results until the last ends."""


def medians(
    functions: Mapping[str, Callable[[], Any]],
    *,
    clock: Clock = time.perf_counter,
    rounds: int = ROUNDS,
    least: float = LEAST,
) -> dict[str, float]:
    """The median seconds of a call of each function.

    A first call of each compiles it. Then every round measures all of them, beginning with another one, so that none
    always follows the same. One measurement calls a function as often in a row as the slowest needs for `least`
    seconds, and waits for the last result.
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


NAIVE = "naive"

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "ring_shift")
"""The measured collectives: those that nccl-tests defines; a shift is its sendrecv."""

MEASURED = (*COLLECTIVES, *SHARDED)

ROWS, COLUMNS = 16384, 1024
"""The full vector of a collective, in float32: 64 MiB, so that bandwidth decides, not latency."""


@dataclasses.dataclass(frozen=True)
class Form:
    """One function in one case."""

    name: str  # that of its row
    implementation: Implementation
    case: Case
    alone: bool = False  # whether it is the product of one device, which sends nothing


def forms(
    contract: str, mesh: MeshCase, *, more: Sequence[Implementation] = (), size: tuple[int, ...] | None = None
) -> list[Form]:
    """The measured forms of one of `MEASURED` over the model axis: all of this project, or the plain ones and `more`.

    The size is rows, contracted size and columns of the whole product (by default `wide`), or rows and columns of a
    collective's full vector, rounded up to what the devices divide.
    """
    if contract not in MEASURED:
        raise ValueError(f"contract={contract!r}: expected one of {', '.join(MEASURED)}")
    if contract in COLLECTIVES:
        case = collective_case(contract, mesh, *(size or (ROWS, COLUMNS)))
        return _named(case, [*_of(contract, BUILT_IN), *(more or _of(contract, ALGORITHMS))])
    rows, contracted, columns = (mesh.size * -(-side // mesh.size) for side in size or SHAPES["wide"])
    case, local = (product_on(contract, (rows, contracted, columns), *mesh.sizes, local=own) for own in (False, True))
    (naive,) = _of(contract, PRODUCTS)
    forms = [naive, *(more or _of(contract, OVERLAPPED))]
    return [Form(UNSHARDED, naive, local, alone=True), *_named(case, forms)]


def collective_case(contract: str, mesh: MeshCase, rows: int, columns: int) -> Case:
    """A collective's case over the model axis, of a full vector of these rows, rounded up, and columns."""
    p = mesh.shape[MODEL]
    rows = p * -(-rows // p)
    return shaped_case(contract, mesh, MODEL, [(rows if contract == "all_gather" else rows * p, columns)], "float32")


def _of(contract: str, implementations: Sequence[Implementation]) -> list[Implementation]:
    return [one for one in implementations if one.contract.name == contract]


def _named(case: Case, implementations: Sequence[Implementation]) -> list[Form]:
    """Those that support a case, with distinct names: a user's function may have the name of a plain one."""
    found: dict[str, Form] = {}
    for one in implementations:
        if one.serves is None or one.serves(case):
            own = form_of(one)
            names = itertools.chain([own], (f"{own} ({i})" for i in itertools.count(2)))
            name = next(name for name in names if name not in (UNSHARDED, *found))
            found[name] = Form(name, one, case)
    return [*found.values()]


def measure(
    forms: Sequence[Form],
    devices: Sequence[Any],
    *,
    clock: Clock = time.perf_counter,
    trace: Callable[[str], Any] | None = None,
    **how: Any,
) -> dict[str, Row]:
    """The row of every form, in one run: first the results of each, then the times of all in turns."""
    functions: dict[str, Callable[[], Any]] = {}
    checked: dict[str, Wrong] = {}
    held: dict[str, tuple[list[np.ndarray], list[np.ndarray]]] = {}
    for form in forms:
        mesh = form.case.mesh
        kinds = (AxisType.Auto,) * len(mesh.sizes)
        # in JAX's order along their links
        function, layouts = build(form, jax.make_mesh(mesh.sizes, mesh.axis_names, kinds, devices=devices))
        if (key := str(form.case)) not in held:
            numbers = exact(form.case)
            blocks = [form.case.blocks(i, array) for i, array in enumerate(numbers)]
            held[key] = numbers, oracle_blocks(form.case, blocks)
        numbers, right = held[key]
        results = function(*jax.device_put(numbers, layouts))
        checked[form.name] = count_wrong(form.case, [np.asarray(result) for result in results], right)
        functions[form.name] = functools.partial(function, *jax.device_put(real(form.case), layouts))
    seconds = medians(functions, clock=clock, **how)
    if trace is not None:
        for name, call in functions.items():
            with trace(name):
                jax.block_until_ready(call())
    return {form.name: _row(form, seconds[form.name], checked[form.name]) for form in forms}


def build(form: Form, mesh: Mesh) -> tuple[Any, list[NamedSharding]]:
    """A form as a compiled function of global arrays, and their layouts."""
    program = forward(form.case, form.implementation, Seen())
    layouts = [NamedSharding(mesh, argument.partition_spec) for argument in program.arguments]
    return jax.jit(program.build(mesh)), layouts


def _row(form: Form, seconds: float, wrong: Wrong) -> Row:
    case = form.case
    dtypes = {operand.dtype for operand in case.operands}
    shapes = ["x".join(map(str, case.global_shape(i))) for i in range(len(case.operands))]
    arrays = f"{'/'.join(sorted(dtypes))} {' '.join(shapes)}"
    return Row(case.contract.name, form.name, arrays, seconds, None if form.alone else traffic(case), wrong)


def tracer(folder: str | None, contract: str) -> Callable[[str], Any] | None:
    """The `trace` of `measure`: writes JAX's profile of each form to `folder/contract/form`, for xprof or Perfetto."""
    if folder is None:
        return None
    return lambda form: jax.profiler.trace(str(Path(folder) / contract / form))


NOTHING_TO_HIDE = 1.1
"""Up to this multiple of the local product the naive form waits so little that hiding it may cost as much."""


def violations(rows: Mapping[str, Row], mesh: MeshCase, chip: Chip | None, *, hides: bool = True) -> list[str]:
    """The violations in the rows of a contract, in sentences.

    No element may be wrong, no bandwidth may exceed that of the links of a published chip, and the fastest of the forms
    that claim to hide their communication must take no longer than the naive one.
    """
    found = [
        f"{row.contract}: {form}: {row.wrong.count:,} of {row.wrong.elements:,} elements wrong; {row.wrong.first}"
        for form, row in rows.items()
        if row.wrong.count
    ]
    overlapped = [row for form, row in rows.items() if form not in (UNSHARDED, NAIVE)]
    if hides and NAIVE in rows and overlapped:
        best, naive = min(overlapped, key=lambda row: row.seconds), rows[NAIVE]
        waits, taken = naive.seconds / rows[UNSHARDED].seconds, best.seconds / naive.seconds
        if taken > (most := max(1.0, NOTHING_TO_HIDE / waits)):
            times = f"{1e6 * best.seconds:.4g} us over {1e6 * naive.seconds:.4g} us, medians of one run"
            found.append(
                f"{best.contract}: {best.form} takes {taken:.2f} times what {NAIVE} takes ({times}): expected at most "
                f"{most:.2f}: the naive form takes {waits:.2f} local products, of which it waits for all that it sends"
            )
    return [*found, *filter(None, (too_fast(row, mesh, chip) for row in rows.values()))]


def too_fast(row: Row, mesh: MeshCase, chip: Chip | None) -> str:
    """A sentence about a bus bandwidth above that of the links; empty otherwise.

    A switch that reduces needs fewer bytes for sums, which are not checked.
    """
    sums = row.contract in ("all_reduce", "matmul_all_reduce")
    if chip is None or row.traffic is None or (sums and not chip.dimensions):
        return ""
    # each of the two devices of a chip has half of its links
    most = chip.bandwidth(mesh, (MODEL,)) / (2 if chip.name == "tpu7x" else 1)
    if row.bus <= 1.05 * most:
        return ""
    return (
        f"{row.contract}: {row.form} has a bus bandwidth of {row.bus / 1e9:.3g} GB/s: expected at most "
        f"{most / 1e9:.3g} GB/s, which the links of {chip.name} along {MODEL} have: what was timed was not over"
    )
