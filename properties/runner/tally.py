"""Counts of what was verified: per contract, implementation and law, and added up over workers."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from shardproof.properties.cases.case import Case
from shardproof.properties.cases.chain import in_words
from shardproof.properties.laws.law import Verdict
from shardproof.properties.programs.implementations import full_name

LINKS_OF_CHAIN, TRIVIAL = "length of the chain", "trivial"
"""Traits that reports name: how many transformations are around the call, and whether nothing can go wrong."""

MAX_EXCLUDED = 1_000
"""How many excluded draws end a search in which nothing else was drawn."""

DECLINED = "declined"
"""The further count of unsupported cases that are so without any derivative."""


IDLE = ("skipped", "unchecked")
"""The outcomes of laws that do not apply, and of those whose search had ended before."""


class StopDrawing(BaseException):
    """Ends a search, past Hypothesis, which takes an Exception for a failing example."""


class HeldOnNothing(AssertionError):
    """No case broke a law, and it held on none either: that is no pass."""


def traits(case: Case) -> dict[str, str]:
    """The traits of a case, whose histograms show a blind spot of the strategies."""
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
        "transformations": in_words(case.chain) if case.chain else "none",
        LINKS_OF_CHAIN: str(len(case.chain)),
    }


@dataclass(repr=False)
class Tally:
    """The cases that one test checked, as the report shows them; JSON-able, and additive."""

    contract: str
    implementation: str
    law: str
    engine: str = ""
    cases: int = 0  # data sets checked against the oracle
    structures: int = 0  # structures they ran on
    compilations: int = 0  # programs traced and compiled for them
    seconds: float = 0.0  # of the processor, shrinking included, all laws in the tally of the first
    meshes: set[str] = field(default_factory=set)
    drawn: dict[str, dict[str, int]] = field(default_factory=dict)  # per trait of a case, structures with each value
    largest: int = 0  # the most devices in a mesh
    unsupported: dict[str, int] = field(default_factory=dict)  # why structures are not supported, and how many each
    first: dict[str, str] = field(default_factory=dict)  # the first case of each reason
    defects: dict[str, int] = field(default_factory=dict)  # the known defects that excused a structure, and how many
    instead: dict[str, int] = field(default_factory=dict)  # why the other engine ran structures, and how many
    not_run: dict[str, int] = field(default_factory=dict)  # why no engine ran structures, and how many
    uncompared: int = 0  # how many of these have nothing that they could be compared with
    broken: bool = False  # whether a case was found that breaks the law
    declined: int = 0  # how many of the unsupported structures are so without any derivative
    underived: int = 0  # how many of them JAX has no derivative of, whatever their keyword arguments
    # structures of each verdict that have more than one participant, and those that are `DECLINED`
    exchanging: dict[str, int] = field(default_factory=dict)
    undecided: int = 0  # numbers compared with nothing, as roundings may move them by too much
    excluded: int = 0  # drawn cases that were dropped because the implementation is not said to serve them
    findings: dict[str, str] = field(default_factory=dict)  # remarks that break no law, each with a first case
    # what the largest case sends: `bytes` of its full vector, `cost`, `case`, and what that is compared with
    # (`against`: a formula, an expectation, or only the lower bound)
    communication: dict[str, Any] = field(default_factory=dict)
    unclaimed: tuple[str, ...] = ()  # features that a user's function does not claim, so that they were not drawn
    stated: tuple[str, ...] = ()  # conditions of a program, so that nothing else was drawn
    choices: dict[str, dict[str, bool]] = field(default_factory=dict)  # as those of a verdict
    changed: dict[str, int] = field(default_factory=dict)  # structures in which each result was changed, for `holds`
    refused: dict[str, int] = field(default_factory=dict)  # how many of them it refused
    outcome: str = "passed"  # or `failed`, `skipped` (the law does not apply), `unchecked` (its search had ended)
    failure: dict[str, Any] = field(default_factory=dict)  # the entry of its failure, for a report with evidence

    def __repr__(self) -> str:
        return f"<{self.cases} cases of {self.name} under {self.law} on {self.engine}>"

    @property
    def name(self) -> str:
        """The implementation in reports: `all_gather[ring]`, or `mlp` where it is a contract of its own."""
        return full_name(self.contract, self.implementation)

    def count(self, case: Case, checked: int) -> None:
        """Adds one structure and the data sets checked on it."""
        self.cases += checked
        self.structures += 1
        self.meshes.add(str(case.mesh))
        for name, value in traits(case).items():
            _add(self.drawn.setdefault(name, {}), {value: 1})
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
        self._choose(verdict.choices)
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
        _add(self.reasons[verdict.kind], {verdict.reason: 1})
        self.first.setdefault(verdict.reason, str(case))

    def exclude(self) -> bool:
        """Counts a case that was drawn and dropped; returns whether to stop, since nothing else was drawn."""
        self.excluded += 1
        return self.excluded >= MAX_EXCLUDED and not self.drawn_structures and not self.broken

    @property
    def reasons(self) -> dict[str, dict[str, int]]:
        """Why structures were not checked, and how many each, by the kind of verdict."""
        return {"unsupported": self.unsupported, "excused": self.defects, "not run": self.not_run}

    @property
    def drawn_structures(self) -> int:
        """The number of structures with a verdict, without the one that breaks the law."""
        return self.structures + sum(sum(counted.values()) for counted in self.reasons.values())

    @property
    def supported(self) -> float:
        """The share of what was drawn that the implementation supports."""
        return 1 - sum(self.unsupported.values()) / max(self.drawn_structures, 1)

    def left_out(self) -> list[str]:
        """A line for each kind of structures that were not checked, with the reasons."""
        lines = []
        for kind, counted in self.reasons.items():
            if counted:
                more = f", and {len(counted) - 1} more reasons" if len(counted) > 1 else ""
                lines.append(f"{sum(counted.values()):,} {kind} ({most_frequent(counted)}{more})")
        return lines

    def finding(self, where: str, what: str) -> None:
        """Notes a remark that breaks no law."""
        self.findings.setdefault(what, where)

    @property
    def verifies(self) -> bool:
        """True if something held, by a law that applies."""
        return self.outcome == "passed" and self.structures > 0

    def skip(self, reason: str, outcome: str = "skipped") -> None:
        """Notes why the law does not apply, or was not checked."""
        self.outcome = outcome
        self.finding(next(iter(self.first.values()), ""), reason)

    def add(self, other: "Tally") -> None:
        """Adds what another tally counted."""
        numbers = "cases structures compilations seconds declined underived uncompared undecided excluded"
        for number in numbers.split():
            setattr(self, number, getattr(self, number) + getattr(other, number))
        for histogram in ("unsupported", "defects", "instead", "not_run", "exchanging", "changed", "refused"):
            _add(getattr(self, histogram), getattr(other, histogram))
        for name, values in other.drawn.items():
            _add(self.drawn.setdefault(name, {}), values)
        self.meshes |= other.meshes
        self.largest = max(self.largest, other.largest)
        self.first = {**other.first, **self.first}
        self._keep(other.communication)
        self._choose(other.choices)
        self.findings = {**other.findings, **self.findings}
        self.unclaimed = self.unclaimed or other.unclaimed
        self.stated = self.stated or other.stated

    @property
    def one_sided(self) -> list[str]:
        """The choices of which a side was never taken, in words, comparisons without equal sides last."""
        never = {call: [side for side, taken in sides.items() if not taken] for call, sides in self.choices.items()}
        found = [f"{call} never had {' or '.join(sides)}" for call, sides in never.items() if sides]
        return sorted(found, key=lambda line: line.endswith("equal sides"))

    def _choose(self, choices: Mapping[str, Mapping[str, bool]]) -> None:
        for call, sides in choices.items():
            into = self.choices.setdefault(call, {})
            into.update({side: taken or into.get(side, False) for side, taken in sides.items()})

    def _keep(self, communication: Mapping[str, Any]) -> None:
        if communication and communication["bytes"] >= self.communication.get("bytes", 0):
            self.communication = {**communication}

    def to_json(self) -> dict[str, Any]:
        """This tally as JSON-able data."""
        record = dataclasses.asdict(self)
        return {k: sorted(v) if isinstance(v, set) else v for k, v in record.items()}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "Tally":
        """The tally that `to_json` wrote, without fields that this version does not have."""
        return msgspec.convert(record, cls)


def _add(histogram: dict[str, int], more: Mapping[str, int]) -> None:
    for name, times in more.items():
        histogram[name] = histogram.get(name, 0) + times


def most_frequent(counted: Mapping[str, int]) -> str:
    """The reason that was counted most often."""
    return max(counted, key=lambda reason: counted[reason])


def merge(tallies: Iterable[Tally]) -> list[Tally]:
    """One tally per implementation: its laws joined, its numbers added."""
    merged: dict[tuple[str, str], Tally] = {}
    for tally in tallies:
        key = tally.contract, tally.implementation
        into = merged.setdefault(key, Tally(*key, ""))
        into.law = ", ".join(dict.fromkeys(filter(None, (*into.law.split(", "), tally.law))))
        into.add(tally)
        if tally.outcome == "failed":
            into.outcome = "failed"
    return list(merged.values())
