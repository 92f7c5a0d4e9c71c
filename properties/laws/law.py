"""A law: a sentence, the implementations and cases that it applies to, and the check that it holds; its violation."""

import contextlib
import dataclasses
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import jax

from shardproof.oracles.layout import nan_equal
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.chain import in_words
from shardproof.properties.engines import Engine
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import RAISED, Broken, Undecided


@dataclass(frozen=True)
class Verdict:
    """The verdict on a case that does not break its law; one that does raises `LawViolation`.

    It is `held`; `unsupported`: the implementation, or JAX for it, raises NotImplementedError; `excused`: it fails
    because of a known defect of JAX or XLA, without which the law holds on this very case; or `not run`: no engine
    that was allowed to can run it.
    """

    kind: Literal["held", "unsupported", "excused", "not run"]
    reason: str = ""  # why it is not held: the exception, the name of the defect, what the engine lacks
    checked: int = 0  # data sets that were checked
    undecided: int = 0  # numbers of results that were compared with nothing
    instead: str = ""  # where another engine ran the case: what this one lacks for it
    final: bool = False  # of a case that is not run, whether it is so on every engine
    # of an unsupported case, whether the function refuses it even if nothing is differentiated: then the law, which
    # need not apply to every case, says nothing of it
    declined: bool = False
    underived: bool = False  # of an unsupported case, whether JAX has no derivative of the function in it
    findings: Sequence[str] = ()  # remarks that break no law
    sent: Mapping[str, Any] | None = None  # what it sends, and what that was compared with, if it was counted
    # of each choice that a line of the function makes, which sides were taken
    choices: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    # of a program with `holds`, results are changed on purpose: for each, whether `holds` says that it is wrong then
    refused: Mapping[str, bool] | None = None


Check = Callable[[Implementation, Case, Engine], Verdict]
"""Returns the verdict if the law holds. Raises Broken if it does not, NotRun if that cannot be decided,
NotImplementedError if the implementation does not support the case, and WrongResult if its result has another tree,
shape or dtype than it should."""

LARGE = 16
"""The most devices of a mesh that is not large."""


def whole_case(case: Case) -> Case | None:
    """A valid case, with the chain around its call."""
    return None if case.forbidden else dataclasses.replace(case, out=None)


def without_chain(case: Case) -> Case | None:
    """A valid case that has no chain around its call."""
    return None if case.forbidden or case.chain else dataclasses.replace(case, out=None)


@dataclass(frozen=True)
class Law:
    """One thing that must hold."""

    name: str
    sentence: str  # what holds
    check: Check
    # returns the case that the law checks where this one is drawn, such as the same call without its chain, or None if
    # it checks nothing there; a case that was returned is returned unchanged
    of: Callable[[Case], Case | None] = whole_case
    concerns: Callable[[Implementation, str], bool] = lambda implementation, engine: True  # on one of its `engines`
    engines: tuple[str, ...] = ("simulate", "xla")  # the engines that can decide it
    check_simulated: Check | None = None  # the interpreter's part of a law that compares engines
    derives: bool = False  # whether it differentiates
    partial: bool = False  # whether an implementation may support none of the cases that it applies to
    # the implementations for which it counts as held even if no engine can run a case
    optional: Callable[[Implementation], bool] = lambda implementation: False
    stands_alone: bool = False  # whether its scripts need no shardproof: they have the oracle's values or gradients

    def applies_to(self, implementation: Implementation, engine: str) -> bool:
        """True if an engine can check it of an implementation."""
        return engine in self.engines and self.concerns(implementation, engine)

    @property
    def between_engines(self) -> bool:
        """True if it compares engines with one another, and not with an oracle."""
        return self.check_simulated is not None


def held_on(decided: Sequence[bool], case: Case, **more: Any) -> Verdict:
    """The verdict on the data sets that distinguish right from wrong, given which do; raises Undecided if none does.

    Arguments:
        more: fields of the verdict.
    """
    if not any(decided):
        names = ", ".join(dict.fromkeys(operand.dtype for operand in case.operands))
        raise Undecided(f"no data set tells right from wrong: roundings leave no certain digit in {names}")
    return Verdict("held", checked=sum(decided), **more)


PROPERTIES = Path(__file__).parents[1]
INNER = ("jax", "jaxlib", "jaxtyping", "beartype", "hypothesis", "_pytest", "pluggy")
"""Packages whose frames say nothing about the implementation."""


NOT_REPRODUCIBLE = "not the same twice: on the same case the function gives other results: they depend on earlier calls"
HOLDS_ELSEWHERE = (
    "not the same twice: in another process the law holds on this case: results depend on earlier calls, on what was "
    "changed in this one, or on the process, as the order of a set does"
)
"""The diagnoses of a function that keeps state: in this process, and where a new process has none."""


LEAKED = "it uses a tracer that leaked from an earlier call, or an array of another mesh: expected its arguments alone"
"""The finding of a function that keeps arrays."""


class LawViolation(AssertionError):
    """An implementation breaks a law on a case.

    Arguments:
        engine: the name of the engine that ran it.
        broken: what is wrong; its parts are attributes here as well.
        origin: the implementation's own traceback, where it raised.
        diagnosis: what is wrong in words, if that is known already.
        evidence: what else a report shows that takes further runs, as JSON-able data, if that is known already.
    """

    def __init__(
        self,
        implementation: Implementation,
        law: Law,
        case: Case,
        engine: str,
        broken: Broken,
        *,
        origin: Sequence[str] = (),
        diagnosis: Sequence[str] | None = None,
        evidence: Mapping[str, Any] | None = None,
    ) -> None:
        self.implementation, self.law, self.case, self.engine = implementation, law, case, engine
        self.broken, self.origin, self.diagnosis, self.evidence = broken, tuple(origin), diagnosis, evidence
        self.kind, self.finding, self.data, self.difference = (
            broken.kind,
            broken.finding,
            broken.data,
            broken.difference,
        )
        super().__init__(self.headline)

    def __str__(self) -> str:
        return "\n  ".join([self.headline, *self.facts])

    @property
    def leaks(self) -> bool:
        """True if JAX refuses an array of a trace that has ended, or of another mesh."""
        return LEAKED in self.finding

    @property
    def stated(self) -> list[str]:
        """A line with what its program states, if it states anything."""
        return [f"stated: {'; '.join(self.implementation.stated)}"] if self.implementation.stated else []

    @property
    def facts(self) -> list[str]:
        """Lines with the case, what its program states, the data, and the engine if it is not XLA."""
        data = [] if self.data is None else [f"data: {self.data.kind}, seed {self.data.seed}"]
        engine = [] if self.engine == "xla" else [f"engine: {self.engine}"]
        return [f"case: {self.case}", *self.stated, *data, *engine]

    @property
    def in_doubles(self) -> bool:
        """True if it shows in double precision alone, below what rounding to the case's own dtypes may do."""
        return self.difference is not None and self.difference.in_doubles(self.case)

    @property
    def rounding(self) -> bool:
        """True if values differ by no more than rounding may make them."""
        return self.difference is not None and self.difference.rounding

    @property
    def mistake(self) -> tuple[object, ...]:
        """The parts of a violation that must stay the same while its case is made smaller.

        They are the law, the kind of what is wrong, whether a result or a derivative is, the exception, and whether
        roundings alone explain it.
        """
        raised = self.finding.partition(":")[0] if self.kind in RAISED else ""
        of = "derivative" if self.broken.of_derivative else self.broken.of
        return self.law.name, self.kind, of, raised, self.rounding

    def resembles(self, other: "LawViolation") -> bool:
        """True if another violation has the same blocks, or the same finding where none are compared."""
        mine, its = self.difference, other.difference
        if mine is None or its is None:
            return self.finding == other.finding
        return mine.actual.shape == its.actual.shape and bool(nan_equal(mine.actual, its.actual).all())

    @property
    def title(self) -> str:
        """The law, with the chain around the call and the size of a large mesh: `gradient under vmap of scan`."""
        under = f" under {in_words(self.case.chain)}" if self.case.chain else ""
        size = f" on {self.case.mesh.size:,} devices" if self.case.mesh.size > LARGE else ""
        return f"{self.law.name}{under}{size}"

    @property
    def headline(self) -> str:
        """Implementation, law, mesh, axis, and what is wrong, in one line."""
        roles = ", ".join(f"{role}={axes!r}" for role, axes in self.case.roles)
        where = f"mesh {self.case.mesh}, {roles or f'axis {self.case.axis_name!r}'}"
        return f"{self.implementation}: {self.title}: {where}: {self.finding}"


def first_line(error: BaseException) -> str:
    """An exception as one line: its class, and the first line of its message."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of a traceback that are neither JAX's nor this suite's."""
    packages = [contextlib.__file__, *(str(Path(jax.__file__).parents[1] / package) for package in INNER)]
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((*packages, "<"))
        and (PROPERTIES not in Path(frame.filename).parents or "mutants" in frame.filename or "test_" in frame.filename)
    ]


def origin_of(error: BaseException) -> list[str]:
    """The last frames of a traceback, without those of JAX and of this suite, and the first lines of the message."""
    lines = []
    for frame in own_frames(error)[-4:]:
        lines += [f'File "{frame.filename}", line {frame.lineno}, in {frame.name}', f"  {frame.line}"]
    message = f"{type(error).__name__}: {error}".rstrip().split("\n")
    # where JAX names the suite's function, and its rules
    message = [line for line in message if "shardproof/properties/" not in line and line.strip("-")]
    return [f"  {line}" for line in (*lines, *message[:6])]
