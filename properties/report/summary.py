"""What was checked of one function, law by law, in a table and in lines."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from shardproof.properties.known_defects import DEFECTS
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import NothingToCompare
from shardproof.properties.runner.tally import Tally, merge

VERDICTS = ("law", "engine", "outcome", "held", "unsupported", "excused", "not run", "excluded")
"""The columns that say what became of the structures that were drawn."""

OUTCOMES = {"passed": "held", "skipped": "does not apply", "failed": "VIOLATED"}
"""What is said of a law by the outcome of its test, if anything ran."""

BOUNDS = {
    "lower bound": "checked against the lower bound only",
    "nothing": "not checked, with no expectation or lower bound",
}
"""What is said where nothing is expected."""

ORDERS = ("one axis", "mesh order", "permuted")

FEW = 0.5
"""An implementation that supports a smaller share of what was drawn is named."""


def notes(tallies: Iterable[Tally]) -> list[str]:
    """What was not checked and why, the known defects met, and what was found out beside, one line each."""
    by_law = list(tallies)
    broken = {
        (t.contract, t.implementation): t.failure.get("headline", "")
        for t in by_law
        if t.law == "communication" and t.outcome == "failed" and not held_nothing(t)
    }
    tallies = merge(by_law)
    met: Counter[str] = sum((Counter(tally.defects) for tally in tallies), Counter())
    lines = [f"known defect, met {counted(n, 'time')}: {name}: {DEFECTS[name].sentence}" for name, n in met.items()]
    for tally in tallies:
        for reason, texts, times in alike(tally.unsupported):
            others = f" in {texts} texts that differ in their values" if texts > 1 else ""
            where = f"{counted(times, 'structure')}{others}, first for {tally.first[reason]}"
            lines.append(f"unsupported: {tally.name}: {reason}, {where}")
        for reason, times in tally.instead.items():
            lines.append(f"engine: {tally.name}: {reason}: {counted(times, 'structure')} run on XLA instead")
        # where nothing at all is compared, that is told by what is sent
        told = NothingToCompare.TEXT if (tally.communication or {}).get("against") == "nothing" else None
        for reason, times in tally.not_run.items():
            if reason != told:
                lines.append(f"not run: {tally.name}: {reason}: {counted(times, 'structure')}")
        if tally.undecided:
            many = f"{counted(tally.undecided, 'number')} may be off by more than an eighth of the largest"
            lines.append(f"undecided: {tally.name}: {many}, by roundings alone: not held to anything")
        accepted = [
            f"{name} ({counted(n, 'structure')})" for name, n in tally.changed.items() if name not in tally.refused
        ]
        if accepted:
            told = "the predicate of holds= never refused a result that was changed, to zeros, by one, a hundred times"
            lines.append(f"says nothing: {tally.name}: {told}: {', '.join(accepted)}")
        for what, where in tally.findings.items():
            if told is None or told not in what:
                lines.append(f"finding: {tally.name}: {what}, first for {where}")
    lines += [f"not claimed, so not drawn: {t.name}: {', '.join(t.unclaimed)}" for t in tallies if t.unclaimed]
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


def weak_points(tallies: Iterable[Tally], devices: int) -> dict[str, list[str]]:
    """What makes a pass weak, by its kind: what was left out, few structures, what was never drawn."""
    found: dict[str, list[str]] = {}
    by_law = [t for t in tallies if t.outcome == "passed"]
    usual = {
        engine: median(t.structures for t in by_law if t.engine == engine) for engine in {t.engine for t in by_law}
    }

    def add(kind: str, who: str, what: str) -> None:
        found.setdefault(kind, []).append(f"{who}: {what}")

    for t in by_law:
        who, whole = f"{t.name}, {t.law} ({t.engine})", max(t.drawn_structures, 1)
        for kind, reasons in (("unsupported", t.unsupported), ("excused", t.defects), ("not run", t.not_run)):
            if reasons:
                part, first = sum(reasons.values()), max(reasons, key=lambda reason: reasons[reason])
                add(kind, who, f"{part / whole:.0%} of {counted(whole, 'structure')}: {first}")
        if t.structures < usual[t.engine] / 2:
            add("few structures", who, f"held on {t.structures:,}, where the median is {usual[t.engine]:g}")
        if t.undecided:
            add("undecided", who, f"{counted(t.undecided, 'element')} compared with nothing, for roundings")
    for name in dict.fromkeys(t.name for t in by_law):
        idle = {"simulate", "xla"} - {t.engine for t in by_law if t.name == name and t.structures}
        if idle:
            add("engines that did not run", name, ", ".join(sorted(idle)))
    for contract in dict.fromkeys(t.contract for t in by_law):
        drawn = [t.drawn for t in by_law if t.contract == contract]
        for trait, known in (("devices", map(str, range(1, devices + 1))), ("axis tuple", ORDERS)):
            if never := [value for value in known if not any(value in one.get(trait, {}) for one in drawn)]:
                add("never drawn", contract, f"{trait}: {', '.join(never)}")
    return found


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


def held_nothing(tally: Tally) -> bool:
    """Whether a law failed because all that was drawn for it is unsupported, or was not run."""
    return tally.outcome == "failed" and not tally.failure and not tally.structures and tally.drawn_structures > 0


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
    outcome = "held nothing" if held_nothing(tally) else OUTCOMES[tally.outcome]
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

    def beside_the_table(self) -> str:
        """What it says where every law is broken, as failures tell that already."""
        told = ("communication NOT as expected: ", "stated, so nothing else was drawn: ")
        return "\n".join([*(line for line in notes(self.tallies) if not line.startswith(told)), *self.machine])
