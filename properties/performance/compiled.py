"""What XLA:TPU made of products, in figures: compiled once, and kept in a file, one program a line."""

import dataclasses
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Self

from shardproof.properties.cases.case import Case
from shardproof.properties.communication.text import HloError
from shardproof.properties.performance.chips import CHIPS, Chip
from shardproof.properties.performance.modelled import Modelled, Place, Work
from shardproof.properties.performance.tpu_compiler import NotCompiled, Topology, TpuCompiler

UNSHARDED = "unsharded"
"""In place of a form: the product that a device would do alone."""

RECORDED = Path(__file__).with_suffix(".jsonl")
"""What `performance.commands.tpu --recorded` wrote, of which the README has tables, and which `choose` asks."""

OWN = "XLA's own"
"""The product of global arrays under `jit`, with XLA's default options: the form `COMPILER` in tables."""

MICRO = 1e6
Key = tuple[str, int, str, str, str, str]
"""The topology, the size of the model axis, the shape, forward or backward, the contract, and the form."""


@dataclass(frozen=True)
class Figures:
    """A schedule in figures.

    Arguments:
        total: microseconds that the program takes.
        compute: in which it computes.
        share: the part of the time in which something is sent that is exposed.
        permutes: how many there are.
        synchronous: transfers beside which nothing can be computed.
        others: transfers that are no permutes.
        temporary_bytes: what is held at most beside arguments and results.
    """

    total: float
    compute: float
    share: float
    permutes: int
    synchronous: int
    others: int
    temporary_bytes: int

    @property
    def seconds(self) -> Fraction:
        """The seconds that the program takes."""
        return Fraction(round(1000 * self.total), 10**9)

    @classmethod
    def of(cls, found: Modelled) -> "Figures":
        """Those of a compiled program."""
        timed = found.schedule
        return cls(
            round(MICRO * float(timed.total), 3),
            round(MICRO * float(timed.compute), 3),
            round(float(timed.share), 4),
            timed.permutes,
            len(timed.synchronous),
            len(timed.monolithic),
            found.temporary_bytes,
        )


def key_of(work: Work, form: str) -> Key:
    """What a program is known by."""
    return str(work.place.topology), work.place.model, work.shape, work.way, work.contract, form


class Records:
    """Figures of programs, compiled where they are not known yet; the compiler lives as long as the `with` statement.

    Arguments:
        path: the file that holds them and gets what is new; None: they are forgotten.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.known = {} if path is None or not path.exists() else read(path)
        self._compiler: TpuCompiler | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._compiler is not None:
            self._compiler.end()

    def of(self, work: Work, form: str) -> Figures:
        """The figures of a form of a product, `UNSHARDED`, or `COMPILER`.

        Raises:
            NotCompiled: if it cannot be compiled, or what comes out cannot be read; the message says why.
            NoTpuCompiler: if it is not known, and libtpu is not installed.
            ValueError: if the model axis does not divide the devices, or what is sharded the sizes.
        """
        key = key_of(work, form)
        if key not in self.known:
            _ = work.sides  # what does not fit needs no compiler to say so
            self.known[key] = self._compiled(work, form)
            if self.path is not None:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(line_of(key, self.known[key]) + "\n")
        found = self.known[key]
        if isinstance(found, str):
            raise NotCompiled(found)
        return found

    def _compiled(self, work: Work, form: str) -> Figures | str:
        self._compiler = self._compiler or TpuCompiler()
        try:
            found = work.unsharded(self._compiler) if form == UNSHARDED else work.of(self._compiler, form)
        except (HloError, NotCompiled) as error:
            return " ".join(str(error).split())
        return Figures.of(found)


def line_of(key: Key, found: Figures | str) -> str:
    """A line of the file: the key, and the figures or why there are none."""
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
    """What is kept in `RECORDED`."""
    return read(RECORDED)


@dataclass(frozen=True)
class Known:
    """What is recorded of a case.

    Arguments:
        topology: for which chips it was compiled.
        alone: the product that a device would do alone.
        forms: each form that is recorded, by the name of its implementation; XLA's own is `COMPILER`.
    """

    topology: str
    alone: Figures
    forms: Mapping[str, Figures]


def known_of(case: Case, machine: Chip, way: str) -> Known | None:
    """What is recorded of a case on the chips of a machine as it is published; None where no form of it is."""
    if CHIPS.get(machine.name) != machine:
        return None
    found: dict[tuple[str, int, str], dict[str, Figures]] = {}
    for (topology, model, shape, direction, contract, form), figures in recorded().items():
        fits = contract == case.contract.name and direction == way and topology.partition(":")[0] == machine.name
        if fits and isinstance(figures, Figures):
            found.setdefault((topology, model, shape), {})[form] = figures
    for (topology, model, shape), forms in found.items():
        if UNSHARDED in forms and same(
            case, Work(case.contract.name, shape, Place(Topology.parse(topology), model)).case()
        ):
            alone = forms.pop(UNSHARDED)
            return Known(topology, alone, forms)
    return None


def same(case: Case, other: Case) -> bool:
    """Whether devices do the same in both: there is one axis, and blocks, parameters and participants are equal."""
    blocks, others = ([(o.block, o.dtype) for o in one.operands] for one in (case, other))
    return (
        len(case.axes) == 1
        and blocks == others
        and case.params == other.params
        and case.participants == other.participants
    )
