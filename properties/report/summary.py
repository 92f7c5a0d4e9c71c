"""What a check says: what it is doing, on standard error, and what became of what was drawn, in words.

That is a line that changes on a terminal, and a line now and then elsewhere; then what was checked, unsupported,
excused, not run, and why.
"""

import re
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import jax
from rich.console import Console
from rich.status import Status

from shardproof.properties.cases.case import Case
from shardproof.properties.known_defects import DEFECTS
from shardproof.properties.laws import Law
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import NothingToCompare
from shardproof.properties.runner.tally import Tally, merge

QUIET_SECONDS = 5.0
"""How often a line is written where there is no terminal; a check that takes less says nothing."""


def devices_note(devices: int) -> list[str]:
    """A line on how many devices XLA runs, where they are too few for most mistakes to show."""
    if devices >= 8:
        return []
    plural = "s" * (devices != 1)
    more = 'jax.config.update("jax_num_cpu_devices", 8), before JAX is first used, makes 8 virtual ones'
    advice = f": {more}" if jax.default_backend() == "cpu" else ""
    return [f"XLA ran on {devices} device{plural}{advice}; the interpreter on 8 and more"]


class Progress:
    """The engines of one check, one after the other.

    Arguments:
        title: what is checked.
        total: how many engines there are.
        notes: what is said first.
    """

    def __init__(self, title: str, total: int, notes: list[str]) -> None:
        self.title, self.total, self.notes = title, total, notes
        self.done = 0
        self.line, self.violated = title, False
        self.console = Console(file=sys.stderr, soft_wrap=True, highlight=False, markup=False)
        self.status: Status | None = Status("", console=self.console) if self.console.is_terminal else None
        self.told = time.monotonic()

    def __enter__(self) -> Self:
        if self.status is not None:
            self._say_notes()
            self.status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.status is not None:
            self.status.stop()

    def engine(self, name: str) -> None:
        """The laws are about to be asked on an engine."""
        self.done += 1
        self.line, self.violated = f"{self.title}: on {name} ({self.done} of {self.total})", False
        self._say(self.line)

    def violation(self, law: Law, case: Case) -> None:
        """A law is broken; of what breaks it then, the smallest is sought, which may take minutes."""
        if not self.violated:
            broken = f"{law.name} violated on mesh {case.mesh}"
            self.violated = self._say(f"{self.line}: {broken}; the smallest is sought")

    def _say(self, line: str) -> bool:
        if self.status is not None:
            self.status.update(line)
        elif time.monotonic() - self.told > QUIET_SECONDS:
            self._say_notes()
            self.console.print(line)
            self.told = time.monotonic()
        else:
            return False
        return True

    def _say_notes(self) -> None:
        for note in self.notes:
            self.console.print(note)
        self.notes = []


VERDICTS = ("law", "engine", "outcome", "held", "unsupported", "excused", "not run", "excluded")
"""The columns that say what became of the structures that were drawn."""

OUTCOMES = {"passed": "held", "skipped": "does not apply", "failed": "VIOLATED"}
"""What is said of a law by the outcome of its test, if anything ran."""

BOUNDS = {
    "lower bound": "checked against the lower bound only",
    "nothing": "not checked, with no expectation or lower bound",
}
"""What is said where nothing is expected."""

FEW = 0.5
"""An implementation that supports a smaller share of what was drawn is named."""


def notes(tallies: Iterable[Tally]) -> list[str]:
    """What was not checked and why, the known defects met, and what was found out beside, one line each."""
    by_law = list(tallies)
    broken = {
        (t.contract, t.implementation): t.failure.get("headline", "")
        for t in by_law
        if t.law == "communication" and t.outcome == "failed"
    }
    tallies = merge(by_law)
    met: dict[str, int] = {}
    for tally in tallies:
        for name, times in tally.defects.items():
            met[name] = met.get(name, 0) + times
    lines = [
        f"known defect, met {counted(times, 'time')}: {name}: {DEFECTS[name].sentence}" for name, times in met.items()
    ]
    for tally in tallies:
        for reason, texts, times in alike(tally.unsupported):
            others = f" in {texts} texts that differ in their values" if texts > 1 else ""
            where = f"{counted(times, 'structure')}{others}, first for {tally.first[reason]}"
            lines.append(f"unsupported: {tally.name}: {reason}, {where}")
        for reason, times in tally.instead.items():
            lines.append(f"engine: {tally.name}: {reason}: {counted(times, 'structure')} run on XLA instead")
        # where nothing at all is compared, that is told by what is sent
        told = NothingToCompare.TEXT if (tally.communication or {}).get("against") == "nothing" else None
        not_run = {reason: times for reason, times in tally.not_run.items() if reason != told}
        findings = {what: where for what, where in tally.findings.items() if told is None or told not in what}
        for reason, times in not_run.items():
            lines.append(f"not run: {tally.name}: {reason}: {counted(times, 'structure')}")
        if tally.undecided:
            many = (
                f"{counted(tally.undecided, 'number')} may be off by more than an eighth of the largest, by roundings"
            )
            lines.append(f"undecided: {tally.name}: {many} alone: not held to anything")
        for what, where in findings.items():
            lines.append(f"finding: {tally.name}: {what}, first for {where}")
    for tally in tallies:
        if tally.unclaimed:
            missing = ", ".join(tally.unclaimed)
            lines.append(f"not claimed, so not drawn: {tally.name}: {missing}")
    lines += [f"stated, so nothing else was drawn: {t.name}: {'; '.join(t.stated)}" for t in tallies if t.stated]
    lines += [
        f"supports few: {t.name}: {t.law} ({t.engine}): {t.supported:.0%} of {t.drawn_structures:,} structures drawn"
        for t in by_law
        if t.supported < FEW and t.outcome != "skipped"
    ]
    for tally in tallies:
        name, sent = tally.name, tally.communication
        if (tally.contract, tally.implementation) in broken:
            told = broken[tally.contract, tally.implementation] or name
            lines.append(f"communication NOT as expected: {told}")
        elif sent and sent["against"] != "claim":
            unknown = "communication unknown" if sent["against"] in BOUNDS else "communication as expected"
            checked = BOUNDS.get(sent["against"], f"checked against the {sent['against']} only")
            lines.append(f"{unknown}: {name}: {checked}; the largest case sends {sent['cost']}: {sent['case']}")
    return lines


def counted(number: int, noun: str) -> str:
    """A number of things: `1 structure`, `6,883 structures`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def alike(reasons: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """Counted texts, those that differ in nothing but numbers, quoted words, tuples and lists as one.

    Of each kind the first text, how many there are, and how often they were counted together.
    """
    kinds: dict[str, list[str]] = {}
    for reason in reasons:
        kinds.setdefault(re.sub(r"\([^()]*\)|\[[^\[\]]*\]|'[^']*'|\d+", "…", reason), []).append(reason)
    return [(texts[0], len(texts), sum(reasons[text] for text in texts)) for texts in kinds.values()]


def verdict_row(tally: Tally) -> tuple[str, ...]:
    """What became of the structures that one law drew, in the order of `VERDICTS`.

    With the share of all, but for a law that is violated: it was drawn no further.
    """
    kinds = (tally.structures, *(sum(c.values()) for c in (tally.unsupported, tally.defects, tally.not_run)))
    whole = max(tally.drawn_structures, 1)
    shares = [
        f"{count:,} ({count / whole:.0%})" if count and tally.outcome != "failed" else f"{count:,}" for count in kinds
    ]
    excluded = f"{tally.excluded:,} ({tally.excluded_share:.0%} of all)" if tally.excluded else "0"
    outcome = OUTCOMES[tally.outcome]
    if tally.outcome == "passed" and not tally.structures:
        outcome = "excused" if tally.defects else "unsupported" if tally.unsupported else "not run"
    return (tally.law, tally.engine, outcome, *shares, excluded)


def verdict_table(tallies: Iterable[Tally]) -> str:
    """What became of the structures that each law drew for one implementation, as lines of text."""
    rows = [VERDICTS, *map(verdict_row, tallies)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(VERDICTS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


@dataclass(frozen=True)
class Summary:
    """What a function was checked on: one tally per law and engine, and what is to be known of the machine.

    As text, a table of them.
    """

    implementation: Implementation
    tallies: tuple[Tally, ...]
    machine: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([str(self.implementation), verdict_table(self.tallies), *notes(self.tallies), *self.machine])
