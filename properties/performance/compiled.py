"""XLA:TPU's schedules of products in figures: compiled once, and recorded in a file, one program a line.

Every form has the same product on a device, that of a matrix product whose rows are sharded over the data axis, and
whose columns (or contracted rows) over the model axis, which lies on rings of neighbouring chips.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case
from shardproof.properties.communication.text import HloError
from shardproof.properties.performance.chips import CHIPS, Chip, chip
from shardproof.properties.performance.scheduled import Schedule, schedule
from shardproof.properties.performance.tpu_compiler import (
    BACKWARD,
    COMPILER,
    FORWARD,
    NotCompiled,
    NoTpuCompiler,
    Request,
    TpuCompiler,
)
from shardproof.properties.performance.tpu_compiler.topology import Topology
from shardproof.properties.programs.examples import product_case, received, whole_sides

MODEL = "model"


@dataclass(frozen=True)
class Place:
    """The chips on which products run."""

    topology: Topology
    model: int  # the size of the model axis

    @property
    def devices(self) -> int:
        """The number of devices: a chip of TPU7x is two."""
        return self.topology.chips * (2 if self.topology.generation == "tpu7x" else 1)


CUT: dict[str, tuple[tuple[int, ...], int | None]] = {
    "all_gather_matmul_lhs_contracting": ((1, 2), 1),
    "all_gather_matmul_lhs": ((0, 2), 0),
    "all_gather_matmul_rhs": ((0, 1), 1),
    "matmul_reduce_scatter": ((0, 1), 0),
    "matmul_all_reduce": ((1,), None),
    "transformer_block": ((1, 2), 1),
}
"""Those of rows, contracted size and columns that the model axis shards, and the one of these that is gathered."""


def product_on(contract: str, shape: str | tuple[int, int, int], data: int, p: int, *, local: bool = False) -> Case:
    """A product over a model axis of p devices and a data axis of `data`, or the `local` one that each device does.

    The local one has a model axis of one device, so that it gathers and reduces nothing.
    """
    whole, (among, gathered) = whole_sides(contract, shape), CUT[contract]
    cut = [(data if i == 0 else 1) * (p if i in among else 1) for i in range(3)]
    if any(size % by for size, by in zip(whole, cut, strict=True)):
        raise ValueError(f"shape={shape}: expected sizes that {tuple(cut)} divide")
    m, k, n = (
        size // by * (p if local and i == gathered else 1) for i, (size, by) in enumerate(zip(whole, cut, strict=True))
    )
    mesh = MeshCase(("data", MODEL), (data * p, 1) if local else (data, p))
    return product_case(contract, mesh, MODEL, (m, k, n), dtype="bfloat16")


AGAIN = {"matmul_reduce_scatter": Fraction(1), "matmul_all_reduce": Fraction(0), "transformer_block": Fraction(3, 2)}
"""The bytes of the backward pass over those of the forward pass: 2 for a gather, which is repeated and transposed.

A reduce-scatter becomes a gather, an all-reduce nothing; a block gathers its input and the cotangent, and scatters
sums.
"""


UNSHARDED = "unsharded"
"""In place of a form: the local product of one device."""


@dataclass(frozen=True)
class Work:
    """A product at a place, of one of `examples.SHAPES`."""

    contract: str
    shape: str  # a name of `SHAPES`
    place: Place
    way: str = FORWARD  # forward, or backward alone

    def case(self, *, local: bool = False) -> Case:
        """The case of a form, or of the `local` product of one device."""
        p, devices = self.place.model, self.place.devices
        if devices % p:
            raise ValueError(f"model={p}: expected a size that divides the {devices} devices of {self.place.topology}")
        return product_on(self.contract, self.shape, devices // p, p, local=local)

    def compiled(self, compiler: TpuCompiler, form: str) -> tuple[Schedule, int]:
        """The schedule of a form by its name, `UNSHARDED` or `COMPILER`, and its temporary bytes."""
        local, topology = form == UNSHARDED, self.place.topology
        name = form if form == COMPILER else f"{self.contract}[{'naive' if local else form}]"
        found = compiler.compile(Request(str(topology), self.case(local=local), name, self.way))
        return schedule(found.text, topology, found.chips), found.temporary_bytes

    def floor(self, unsharded: Fraction) -> Fraction:
        """A lower bound on the time, relative to the local product: 1, or all transfers both ways round plus 1/p.

        The first or the last of p products has no transfer beside it, or the first transfer no product.
        """
        p, link = self.place.model, chip(self.place.topology.generation).link
        cores = self.place.devices // self.place.topology.chips
        again = AGAIN.get(self.contract, 2) if self.way == BACKWARD else 1
        sent = again * received(self.case()) * cores / (2 * link)
        products = 2 if self.way == BACKWARD or self.contract == "transformer_block" else 1
        return max(Fraction(1), sent / unsharded + Fraction(1, products * p))


RECORDED = Path(__file__).with_suffix(".jsonl")
"""The records of `shardproof tpu --recorded`, for the tables of the pages and for `choose`."""

OWN = "XLA's own"
"""The product of global arrays under `jit`, with XLA's default options: the form `COMPILER` in tables."""

MICRO = 1e6
Key = tuple[str, int, str, str, str, str]
"""The topology, the size of the model axis, the shape, forward or backward, the contract, and the form."""


@dataclass(frozen=True)
class Figures:
    """A schedule in figures."""

    total: float  # microseconds of the program
    compute: float  # microseconds of computation
    share: float  # the exposed part of its communication
    permutes: int  # their number
    synchronous: int  # the number of transfers without overlap
    others: int  # the number of transfers other than permutes
    temporary_bytes: int  # the most beside arguments and results

    @property
    def seconds(self) -> Fraction:
        """The seconds of the program."""
        return Fraction(round(1000 * self.total), 10**9)

    @classmethod
    def of(cls, timed: Schedule, held: int) -> "Figures":
        """The figures of a compiled program, given the most bytes at one time beside arguments and results."""
        total, compute = (round(MICRO * float(time), 3) for time in (timed.total, timed.compute))
        counts = timed.permutes, len(timed.synchronous), len(timed.monolithic)
        return cls(total, compute, round(float(timed.share), 4), *counts, held)


def key_of(work: Work, form: str) -> Key:
    """The key of a program."""
    return str(work.place.topology), work.place.model, work.shape, work.way, work.contract, form


class Records(ExitStack):
    """Figures of programs, compiled if they are not recorded; the compiler lives as long as the `with` statement."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__()
        self.path = path
        self.known = {} if path is None or not path.exists() else read(path)
        self._compiler: TpuCompiler | None = None

    def of(self, work: Work, form: str) -> Figures | str:
        """The figures of a form of a product, `UNSHARDED`, or `COMPILER`, or the reason why there are none."""
        key = key_of(work, form)
        if key not in self.known:
            try:
                work.case()  # sizes that do not divide are refused without a compiler
                self._compiler = self._compiler or self.enter_context(TpuCompiler())
            except (NoTpuCompiler, ValueError) as error:
                return str(error)
            try:
                self.known[key] = Figures.of(*work.compiled(self._compiler, form))
            except (HloError, NotCompiled) as error:
                self.known[key] = " ".join(str(error).split())
            if self.path is not None:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(line_of(key, self.known[key]) + "\n")
        return self.known[key]


def line_of(key: Key, found: Figures | str) -> str:
    """A line of the file: the key, and the figures or the reason why there are none."""
    return json.dumps([*key, found if isinstance(found, str) else dataclasses.astuple(found)])


def read(path: Path) -> dict[Key, Figures | str]:
    """The lines of a file."""
    known: dict[Key, Figures | str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        topology, model, shape, way, contract, form, found = json.loads(line)
        known[topology, model, shape, way, contract, form] = found if isinstance(found, str) else Figures(*found)
    return known


@functools.cache
def recorded() -> Mapping[Key, Figures | str]:
    """The records in `RECORDED`."""
    return read(RECORDED)


@dataclass(frozen=True)
class Known:
    """The records of a case."""

    topology: str  # the chips for which it was compiled
    alone: Figures  # the local product of one device
    forms: Mapping[str, Figures]  # by the name of its implementation; XLA's own is `COMPILER`


def known_of(case: Case, machine: Chip, way: str) -> Known | None:
    """The records of a case on a published machine, or None."""
    if CHIPS.get(machine.name) != machine:
        return None
    found: dict[tuple[str, int, str], dict[str, Figures]] = {}
    for (topology, model, shape, direction, contract, form), figures in recorded().items():
        fits = contract == case.contract.name and direction == way and topology.partition(":")[0] == machine.name
        if fits and isinstance(figures, Figures):
            found.setdefault((topology, model, shape), {})[form] = figures
    for (topology, model, shape), forms in found.items():
        other = Work(case.contract.name, shape, Place(Topology.parse(topology), model)).case()
        # every device does the same in both
        parts, others = (
            ([(o.block, o.dtype) for o in one.operands], one.params, one.participants) for one in (case, other)
        )
        if UNSHARDED in forms and len(case.axes) == 1 and parts == others:
            return Known(topology, forms.pop(UNSHARDED), forms)
    return None
