"""What is measured together: the forms of one contract at one shape, on the same devices and the same numbers."""

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
from shardproof.properties.engines.running import all_blocks, oracle_blocks
from shardproof.properties.performance import tables
from shardproof.properties.performance.chips import CHIPS, Chip
from shardproof.properties.performance.compiled import product_on
from shardproof.properties.performance.shaped import shaped
from shardproof.properties.performance.tables import form_of
from shardproof.properties.programs.built_in import ALGORITHMS, BUILT_IN, OVERLAPPED, PRODUCTS
from shardproof.properties.programs.examples import SHAPES, SHARDED, received
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import Seen, forward

KINDS = {
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU7x": "tpu7x",
}
"""The chips of `CHIPS` by what JAX calls their kind; as libtpu 0.0.42 has it, and for v5p as it is on machines too."""

DATA, MODEL = "data", "model"
PARTICIPANTS = 4
"""The size of the model axis, where there are as many devices: most machines have a ring of four chips."""


def chip_of(device: Any) -> Chip | None:
    """The published chip that a device is; None where it is none."""
    kind = str(device.device_kind)
    if kind.startswith("NVIDIA H100") and "PCIe" not in kind:
        return CHIPS["h100"]
    return CHIPS[KINDS[kind]] if kind in KINDS else None


def mesh_of(devices: int) -> MeshCase:
    """A mesh of so many devices: four, or fewer, along the model axis, and what is left along the data axis."""
    model = next(p for p in (PARTICIPANTS, 3, 2, 1) if devices % p == 0)
    model = devices if model < 3 and devices > 1 else model
    return MeshCase((DATA, MODEL), (devices // model, model))


def placed(mesh: MeshCase, devices: Sequence[Any]) -> Mesh:
    """The mesh over these devices, in the order in which JAX lays it over their links."""
    return jax.make_mesh(mesh.sizes, mesh.axis_names, (AxisType.Auto,) * len(mesh.sizes), devices=devices)


class Traffic(NamedTuple):
    """What a collective, or a product, is measured by, in bytes."""

    size: Fraction  # S of nccl-tests
    bus: Fraction  # what each device must send at least


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
    """The elements of all devices' results that are not the oracle's."""

    count: int  # how many
    elements: int  # of how many
    first: str = ""  # where the first one is, and what it should be; empty if there is none


@dataclass(frozen=True)
class Row:
    """One form of a contract at one shape, on some devices."""

    contract: str  # what it computes
    form: str  # its name
    arrays: str  # dtype and global shape of each operand
    seconds: float  # the median of its times
    traffic: Traffic | None  # what must be sent; None: it is alone, and sends nothing
    wrong: Wrong  # what is wrong of its results

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
        """What the table has, by `TABLE`."""
        gone = [f"{rate / 1e9:.3g}" if self.traffic is not None else "-" for rate in (self.algorithm, self.bus)]
        counts = (f"{self.wrong.count:,}", f"{self.wrong.elements:,}")
        return (self.contract, self.form, self.arrays, f"{1e6 * self.seconds:.4g}", *gone, *counts)


def table(rows: Sequence[Row], title: str = "") -> Table:
    """The rows as they are printed."""
    return tables.table(title, TABLE, [row.cells for row in rows], left=3)


CONTRACTED: dict[str, tuple[int | None, ...]] = {"transformer_block": (-1, None, 0)}
"""The dimension of each operand of a product that is added up, where most of its elements are zero."""


def real(case: Case) -> list[np.ndarray]:
    """Ordinary numbers: zeros would be multiplied faster than they are, by a device that is limited by its power."""
    return [generate(Data("real", 0), case.global_shape(i), o.numpy_dtype) for i, o in enumerate(case.operands)]


def exact(case: Case) -> list[np.ndarray]:
    """Small integers, of which every sum is exact in their dtype; where nothing is added up, one after the other.

    Of what is contracted in a product so few are not zero that all partial sums are exact in the operands' dtype,
    whoever adds them up in whatever order and dtype: no more than the largest integer that it holds exactly.
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
        found.append(units if axis is None else thinned(units, axis, most))
    return found


def thinned(array: np.ndarray, axis: int, most: int) -> np.ndarray:
    """A matrix with all but at most so many elements zero along an axis, at other places in each line."""
    every = math.ceil(array.shape[axis] / most)
    rows, columns = array.shape
    places = np.arange(rows)[:, None] + np.arange(columns)
    return np.where(places % every == 0, array, np.zeros((), array.dtype))


def expected(case: Case, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What every device should hold, by the oracle."""
    return oracle_blocks(case, [case.blocks(i, array) for i, array in enumerate(arrays)])


def wrong(case: Case, results: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> Wrong:
    """The elements that are not what they should be; of another shape or dtype, all."""
    count, elements, first, lead = 0, 0, "", len(case.mesh.sizes)
    for result, blocks in zip(results, right, strict=True):
        held = all_blocks(case, result)
        elements += blocks.size
        if held.shape != blocks.shape or held.dtype != blocks.dtype:
            told = [f"{array.dtype} blocks of shape {array.shape[lead:]}" for array in (held, blocks)]
            count, first = count + blocks.size, first or f"{told[0]}: expected {told[1]}"
            continue
        off = ~nan_equal(held, blocks)
        count += int(off.sum())
        if off.any() and not first:
            at = tuple(np.argwhere(off)[0].tolist())
            where = f"element {[*at[lead:]]} on device {device_name(case.mesh, at[:lead])}"
            first = f"the first: {where} is {held[at]}, expected {blocks[at]}"
    return Wrong(count, elements, first)


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


UNSHARDED, NAIVE = "unsharded", "naive"

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "ring_shift")
"""The collectives that are measured: what nccl-tests has a definition for; a shift is its sendrecv."""

MEASURED = (*COLLECTIVES, *SHARDED)

ROWS, COLUMNS = 16384, 1024
"""The full vector of a collective, in float32: 64 MiB, where bandwidth and not latency decides."""


@dataclasses.dataclass(frozen=True)
class Form:
    """One function in one case."""

    name: str  # what its row is called
    implementation: Implementation  # the function
    case: Case  # what it is called with
    alone: bool = False  # whether it sends nothing: the product of one device that the others are held against


def forms(
    contract: str, mesh: MeshCase, *, more: Sequence[Implementation] = (), size: tuple[int, ...] | None = None
) -> list[Form]:
    """What is measured of one of `MEASURED` over the model axis: all forms of this project, or plain ones and `more`.

    The size is rows, contracted size and columns of the whole product (that which is called wide, if none is given), or
    rows and columns of a collective's full vector: a few more, where they do not divide by the devices.
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
    """A collective's case over the model axis; its full vector has so many rows, or a few more, and columns."""
    p = mesh.shape[MODEL]
    rows = p * -(-rows // p)
    return shaped(contract, mesh, MODEL, [(rows if contract == "all_gather" else rows * p, columns)], "float32")


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


def measure(
    forms: Sequence[Form],
    devices: Sequence[Any],
    *,
    clock: Clock = time.perf_counter,
    trace: Callable[[str], Any] | None = None,
    **how: Any,
) -> dict[str, Row]:
    """The row of every form, in one run: first what is wrong of each, then how long all of them take, in turns."""
    functions: dict[str, Callable[[], Any]] = {}
    checked: dict[str, Wrong] = {}
    held: dict[str, tuple[list[np.ndarray], list[np.ndarray]]] = {}
    for form in forms:
        function, layouts = built(form, placed(form.case.mesh, devices))
        if (key := str(form.case)) not in held:
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


NOTHING_TO_HIDE = 1.1
"""Up to so many local products, the naive form waits so little that hiding it may cost as much."""


def broken(rows: Mapping[str, Row], mesh: MeshCase, chip: Chip | None, *, hides: bool = True) -> list[str]:
    """What does not hold of the rows of a contract, in sentences.

    No element is wrong; no bandwidth exceeds that of the links, if the devices are a published chip; and if forms of a
    product claim to hide what they send, the fastest of them takes no longer than the naive one.
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
    return found + [told for row in rows.values() if (told := too_fast(row, mesh, chip))]


def too_fast(row: Row, mesh: MeshCase, chip: Chip | None) -> str:
    """What is said of a bus bandwidth that no links have: what was timed was not over, or was not done.

    A switch that adds up by itself needs fewer bytes for sums; of those nothing is said.
    """
    sums = row.contract in ("all_reduce", "matmul_all_reduce")
    if chip is None or row.traffic is None or (sums and not chip.dimensions):
        return ""
    # where a chip is two devices, each has half of its links
    most = chip.bandwidth(mesh, (MODEL,)) / (2 if chip.name == "tpu7x" else 1)
    if row.bus <= 1.05 * most:
        return ""
    return (
        f"{row.contract}: {row.form} has a bus bandwidth of {row.bus / 1e9:.3g} GB/s: expected at most "
        f"{most / 1e9:.3g} GB/s, which the links of {chip.name} along {MODEL} have: what was timed was not over"
    )
