"""What was verified, counted: per contract, implementation and law, and added up over workers."""

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from properties.cases import Case


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
        "operand": "varies" if axes else "replicated",
        "around": case.around,
    }


@dataclass(repr=False)
class Tally:
    """The cases that one test checked, as the report shows them; JSON-able, and additive.

    Arguments:
        contract: the contract.
        implementation: the implementation.
        law: the law.
        engine: what ran it.
        cases: how many data sets were checked against the oracle.
        structures: how many structures they ran on.
        compilations: how many programs were traced and compiled for them.
        seconds: how long it took, shrinking included.
        meshes: the distinct meshes.
        drawn: per trait of a case, how many structures had each of its values.
        largest: the most devices in a mesh.
        gaps: what the implementation said that it does not serve, each with a first case.
        defects: the known defects of JAX or XLA that were met, and how often.
        findings: what is worth knowing and breaks no law, each with a first case.
        communication: what the largest case sends: `bytes` of its full vector, `cost`, `case`, and what it is
            held to (`against`: a formula, an expectation, or only the lower bound).
        outcome: `passed` or `failed`.
        failure: what a person needs of a failure: its headline, text, script and case.
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
    largest: int = 0
    gaps: dict[str, str] = field(default_factory=dict)
    defects: dict[str, int] = field(default_factory=dict)
    findings: dict[str, str] = field(default_factory=dict)
    communication: dict[str, Any] = field(default_factory=dict)
    outcome: str = "passed"
    failure: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<{self.cases} cases of {self.contract}[{self.implementation}] under {self.law} on {self.engine}>"

    def count(self, case: Case, checked: int) -> None:
        """Adds one structure and the data sets checked on it."""
        self.cases += checked
        self.structures += 1
        self.meshes.add(str(case.mesh))
        for name, value in traits(case).items():
            self.draw(name, value)
        self.largest = max(self.largest, case.mesh.size)

    def draw(self, trait: str, value: str, times: int = 1) -> None:
        """Counts structures with a trait."""
        histogram = self.drawn.setdefault(trait, {})
        histogram[value] = histogram.get(value, 0) + times

    def gap(self, case: Case, reason: str) -> None:
        """Notes that a case is not served."""
        self.gaps.setdefault(reason, str(case))

    def finding(self, where: str, what: str) -> None:
        """Notes what is worth knowing and breaks no law."""
        self.findings.setdefault(what, where)

    def add(self, other: "Tally") -> None:
        """Adds what another tally counted."""
        self.cases += other.cases
        self.structures += other.structures
        self.compilations += other.compilations
        self.seconds += other.seconds
        self.meshes |= other.meshes
        for name, histogram in other.drawn.items():
            for value, times in histogram.items():
                self.draw(name, value, times)
        self.largest = max(self.largest, other.largest)
        self.gaps.update(other.gaps)
        for name, times in other.defects.items():
            self.defect(name, times)
        self._keep(other.communication)
        self.findings = {**other.findings, **self.findings}

    def defect(self, name: str, times: int = 1) -> None:
        """Notes that a case fails because of a known defect, and not of the implementation."""
        self.defects[name] = self.defects.get(name, 0) + times

    def sends(self, case: Case, size: int, cost: str, against: str) -> None:
        """Notes what a case sends, given the bytes of its full vector, and what that was held to."""
        self._keep({"bytes": size, "cost": cost, "case": str(case), "against": against})

    def _keep(self, communication: dict[str, Any]) -> None:
        if communication and communication["bytes"] >= self.communication.get("bytes", 0):
            self.communication = communication

    def to_json(self) -> dict[str, Any]:
        """This tally as JSON-able data."""
        record = dataclasses.asdict(self)
        return {k: sorted(v) if isinstance(v, set) else v for k, v in record.items()}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "Tally":
        """The tally that `to_json` wrote."""
        return cls(**{**record, "meshes": set(record["meshes"])})


def merge(tallies: Iterable[Tally]) -> list[Tally]:
    """One tally per implementation: its laws joined, its numbers added."""
    merged: dict[tuple[str, str], Tally] = {}
    for tally in tallies:
        into = merged.setdefault(
            (tally.contract, tally.implementation), Tally(tally.contract, tally.implementation, "")
        )
        into.law = ", ".join(dict.fromkeys(filter(None, (*into.law.split(", "), tally.law))))
        into.add(tally)
        if tally.outcome != "passed":
            into.outcome = tally.outcome
    return list(merged.values())
