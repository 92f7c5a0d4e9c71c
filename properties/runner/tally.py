"""What was verified, counted: per contract, implementation and law, and added up over workers."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal

from shardproof.properties.cases.case import Case
from shardproof.properties.cases.chain import in_words
from shardproof.properties.programs.implementations import full_name

TRANSFORMATIONS, LINKS_OF_CHAIN = "transformations", "length of the chain"
"""The traits that say what is around the call."""

TRIVIAL = "trivial"
"""The trait that says whether nothing can go wrong."""

ENOUGH = 1_000
"""So many draws that were excluded, and none that was not, end a search."""

DECLINED = "declined"
"""Beside the verdicts, what is counted of unsupported cases: those that are so without any derivative."""


Kind = Literal["held", "unsupported", "excused", "not run"]


@dataclass(frozen=True)
class Verdict:
    """What became of a case that does not break its law; one that does raises `LawViolation`.

    Arguments:
        kind: `held`; `unsupported`: the implementation, or JAX for it, raises NotImplementedError; `excused`: it fails
            because of a known defect of JAX or XLA, without which the law holds on this very case; `not run`: no engine
            that was allowed to can run it.
        reason: why it is not held: the exception, the name of the defect, what the engine lacks.
        checked: how many data sets were checked.
        undecided: how many numbers of results were not held to anything.
        instead: why another engine ran it than the one that was asked to.
        final: of a case that is not run, whether it is so on every engine.
        declined: of an unsupported case, whether it is so without any derivative, so that the law has nothing to say.
        underived: of an unsupported case, whether JAX has no derivative of the function in it.
        findings: what is worth knowing and breaks no law.
        sent: what the case sends, and what that was compared with, if anything counted it.
        refused: of each result that was changed, whether a predicate of results refused it then.
    """

    kind: Kind
    reason: str = ""
    checked: int = 0
    undecided: int = 0
    instead: str = ""
    final: bool = False
    declined: bool = False
    underived: bool = False
    findings: tuple[str, ...] = ()
    sent: Mapping[str, Any] | None = None
    refused: Mapping[str, bool] | None = None


class Enough(BaseException):
    """Ends a search in which hardly any case is supported.

    It is no Exception, because Hypothesis takes those for a failing example, and shrinks it.
    """


class HeldOnNothing(AssertionError):
    """A law was broken by no case, and held on none either: that is no pass."""


def traits(case: Case) -> dict[str, str]:
    """What a case is like, by the traits whose histograms show a blind spot of the strategies."""
    first = case.operands[0]
    axes = first.placement.axes
    return {
        "devices": str(case.mesh.size),
        "axes of the mesh": str(len(case.mesh.sizes)),
        "axis tuple": case.order,
        "devices in order": "no" if case.mesh.permuted else "yes",
        "axis types": " and ".join(sorted(set(case.mesh.axis_types))) or "auto",
        "dtype": first.dtype,
        "rank of a block": str(len(first.block)),
        "elements of a block": str(math.prod(first.block)),
        TRIVIAL: "yes" if case.trivial else "no",
        "operand": "varies" if axes else "replicated",
        TRANSFORMATIONS: in_words(case.chain) if case.chain else "none",
        LINKS_OF_CHAIN: str(len(case.chain)),
    }


@dataclass(repr=False)
class Tally:
    """The cases that one test checked, as the report shows them; JSON-able, and additive.

    Arguments:
        cases: how many data sets were checked against the oracle.
        structures: how many structures they ran on.
        compilations: how many programs were traced and compiled for them.
        seconds: how long the processor took, shrinking included, all laws in the tally of the first.
        meshes: the distinct meshes.
        drawn: per trait of a case, how many structures had each of its values.
        pairs: how many structures had one transformation (first) around another, by both names.
        largest: the most devices in a mesh.
        unsupported: what the implementation said that it does not support, and of how many structures.
        first: the first case of each of these reasons.
        defects: the known defects of JAX or XLA that excused a structure, and how many each.
        instead: what kept the engine from running structures that the other engine ran, and how many.
        not_run: what kept every engine from running a structure, and how many.
        uncompared: how many of these have nothing that they could be compared with.
        broken: whether a case was found that breaks the law.
        declined: how many of the unsupported structures are so without any derivative.
        underived: how many of them JAX has no derivative of, whatever keyword arguments are.
        exchanging: how many structures of each verdict have more than one participant, and how many are `DECLINED`.
        undecided: how many numbers of results were not held to anything, as roundings may move them by too much.
        excluded: how many drawn cases were dropped because the implementation is not asked to serve them.
        findings: what is worth knowing and breaks no law, each with a first case.
        communication: what the largest case sends: `bytes` of its full vector, `cost`, `case`, and what it is
            held to (`against`: a formula, an expectation, or only the lower bound).
        unclaimed: the features that a user's function does not claim, so that they were not drawn.
        stated: what a program is said to need, so that nothing else was drawn.
        changed: in how many structures each result was changed, and a predicate of results asked once more.
        refused: in how many of them it refused that.
        outcome: `passed`, `failed`, or `skipped` where the law does not apply.
        failure: what a person needs of a failure: its headline, text, script and case, for a report with evidence.
    """

    contract: str
    implementation: str
    law: str
    engine: str = ""
    cases: int = 0
    structures: int = 0
    compilations: int = 0
    seconds: float = 0.0
    meshes: set[str] = field(default_factory=set)
    drawn: dict[str, dict[str, int]] = field(default_factory=dict)
    pairs: dict[str, dict[str, int]] = field(default_factory=dict)
    largest: int = 0
    unsupported: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    defects: dict[str, int] = field(default_factory=dict)
    instead: dict[str, int] = field(default_factory=dict)
    not_run: dict[str, int] = field(default_factory=dict)
    uncompared: int = 0
    broken: bool = False
    declined: int = 0
    underived: int = 0
    exchanging: dict[str, int] = field(default_factory=dict)
    undecided: int = 0
    excluded: int = 0
    findings: dict[str, str] = field(default_factory=dict)
    communication: dict[str, Any] = field(default_factory=dict)
    unclaimed: tuple[str, ...] = ()
    stated: tuple[str, ...] = ()
    changed: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    outcome: str = "passed"
    failure: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<{self.cases} cases of {self.name} under {self.law} on {self.engine}>"

    @property
    def name(self) -> str:
        """What the implementation is called: `all_gather[ring]`, or `mlp` where it is a contract of its own."""
        return full_name(self.contract, self.implementation)

    def count(self, case: Case, checked: int) -> None:
        """Adds one structure and the data sets checked on it."""
        self.cases += checked
        self.structures += 1
        self.meshes.add(str(case.mesh))
        for name, value in traits(case).items():
            _add(self.drawn.setdefault(name, {}), {value: 1})
        for outer, inner in set(combinations(case.chain, 2)):
            _add(self.pairs.setdefault(outer, {}), {inner: 1})
        self.largest = max(self.largest, case.mesh.size)

    def note(self, verdict: Verdict, case: Case) -> None:
        """Counts the verdict on one structure."""
        if set(case.axes) <= set(case.mesh.axis_names) and case.participants > 1:
            _add(self.exchanging, {verdict.kind: 1} | ({DECLINED: 1} if verdict.declined else {}))
        self.declined += verdict.declined
        self.underived += verdict.underived and not case.params
        self.uncompared += verdict.kind == "not run" and verdict.sent is not None
        for finding in verdict.findings:
            self.finding(str(case), finding)
        if verdict.refused is not None:
            _add(self.changed, dict.fromkeys(verdict.refused, 1))
            _add(self.refused, {name: 1 for name, refused in verdict.refused.items() if refused})
        if verdict.sent is not None:
            self._keep(verdict.sent)
        if verdict.instead:
            _add(self.instead, {verdict.instead: 1})
        if verdict.kind == "held":
            self.count(case, verdict.checked)
            self.undecided += verdict.undecided
            return
        counted = {"unsupported": self.unsupported, "excused": self.defects, "not run": self.not_run}[verdict.kind]
        _add(counted, {verdict.reason: 1})
        self.first.setdefault(verdict.reason, str(case))

    def exclude(self) -> bool:
        """Counts a case that was drawn and dropped; whether so many were, and no other, that it is enough."""
        self.excluded += 1
        return self.excluded >= ENOUGH and not self.drawn_structures and not self.broken

    @property
    def drawn_structures(self) -> int:
        """How many structures got a verdict, the one that breaks the law aside."""
        return self.structures + sum(map(sum, (c.values() for c in (self.unsupported, self.defects, self.not_run))))

    @property
    def supported(self) -> float:
        """The share of what was drawn that the implementation supports."""
        return 1 - sum(self.unsupported.values()) / max(self.drawn_structures, 1)

    @property
    def excluded_share(self) -> float:
        """The share of all draws that were dropped because the implementation is not asked to serve them."""
        return self.excluded / max(self.drawn_structures + self.excluded, 1)

    def left_out(self) -> list[str]:
        """What was drawn and not checked, with its reasons, a line for each kind."""
        kinds = (("unsupported", self.unsupported), ("excused", self.defects), ("not run", self.not_run))
        return [f"{sum(counted.values()):,} {kind} ({_most(counted)})" for kind, counted in kinds if counted]

    def finding(self, where: str, what: str) -> None:
        """Notes what is worth knowing and breaks no law."""
        self.findings.setdefault(what, where)

    @property
    def verifies(self) -> bool:
        """Whether something held, by a law that applies."""
        return self.outcome == "passed" and self.structures > 0

    def skip(self, reason: str) -> None:
        """Notes why the law does not apply."""
        self.outcome = "skipped"
        self.finding(next(iter(self.first.values()), "no case"), reason)

    def add(self, other: "Tally") -> None:
        """Adds what another tally counted."""
        numbers = "cases structures compilations seconds declined underived uncompared undecided excluded"
        for number in numbers.split():
            setattr(self, number, getattr(self, number) + getattr(other, number))
        for histogram in ("unsupported", "defects", "instead", "not_run", "exchanging", "changed", "refused"):
            _add(getattr(self, histogram), getattr(other, histogram))
        for ours, others in ((self.drawn, other.drawn), (self.pairs, other.pairs)):
            for name, values in others.items():
                _add(ours.setdefault(name, {}), values)
        self.meshes |= other.meshes
        self.largest = max(self.largest, other.largest)
        self.first = {**other.first, **self.first}
        self._keep(other.communication)
        self.findings = {**other.findings, **self.findings}
        self.unclaimed = self.unclaimed or tuple(other.unclaimed)
        self.stated = self.stated or tuple(other.stated)

    def _keep(self, communication: Mapping[str, Any]) -> None:
        if communication and communication["bytes"] >= self.communication.get("bytes", 0):
            self.communication = {**communication}

    def to_json(self) -> dict[str, Any]:
        """This tally as JSON-able data."""
        record = dataclasses.asdict(self)
        return {k: sorted(v) if isinstance(v, set) else v for k, v in record.items()}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "Tally":
        """The tally that `to_json` wrote."""
        return cls(**{**record, "meshes": set(record["meshes"])})


def _add(histogram: dict[str, int], more: Mapping[str, int]) -> None:
    for name, times in more.items():
        histogram[name] = histogram.get(name, 0) + times


def _most(counted: dict[str, int]) -> str:
    """The most frequent reason, and how many others there are."""
    first = max(counted, key=lambda reason: counted[reason])
    return first + (f", and {len(counted) - 1} more reasons" if len(counted) > 1 else "")


def merge(tallies: Iterable[Tally]) -> list[Tally]:
    """One tally per implementation: its laws joined, its numbers added."""
    merged: dict[tuple[str, str], Tally] = {}
    for tally in tallies:
        into = merged.setdefault(
            (tally.contract, tally.implementation), Tally(tally.contract, tally.implementation, "")
        )
        into.law = ", ".join(dict.fromkeys(filter(None, (*into.law.split(", "), tally.law))))
        into.add(tally)
        if tally.outcome == "failed":
            into.outcome = "failed"
    return list(merged.values())
