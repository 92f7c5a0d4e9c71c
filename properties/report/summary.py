"""The summary of what was checked on one function, law by law, in a table and in lines."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from shardproof.properties.cases.reading import counted
from shardproof.properties.known_defects import DEFECTS
from shardproof.properties.performance.tables import aligned
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import NothingToCompare
from shardproof.properties.runner.tally import IDLE, Tally, merge, most_frequent

VERDICTS = ("law", "engine", "outcome", "held", "unsupported", "excused", "not run", "excluded")
"""The columns of verdicts: the law, and how many of the structures that were drawn had each."""

OUTCOMES = {"passed": "held", "skipped": "does not apply", "unchecked": "not checked", "failed": "VIOLATED"}
"""The outcomes in the table, by those of tallies."""

BOUNDS = {
    "lower bound": "checked against the lower bound only",
    "nothing": "not checked, with no expectation or lower bound",
}
"""The notes on communication of which nothing is expected."""

ORDERS = ("one axis", "mesh order", "permuted")

MOST_ONE_SIDED = 3
"""How many choices of one function the text names; a report has all of them."""

FEW = 0.5
"""Below which share of supported structures an implementation is named."""


def notes(tallies: Iterable[Tally]) -> list[str]:
    """A line each on what was not checked and why, the known defects met, and other findings."""
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
        for reason, texts, times in merge_similar(tally.unsupported):
            others = f" in {texts} texts that differ in their values" if texts > 1 else ""
            where = f"{counted(times, 'structure')}{others}, first for {tally.first[reason]}"
            lines.append(f"unsupported: {tally.name}: {reason}, {where}")
        for reason, times in tally.instead.items():
            lines.append(f"engine: {tally.name}: {reason}: {counted(times, 'structure')} run on XLA instead")
        # where nothing at all is compared, the line on communication below says so
        redundant = NothingToCompare.TEXT if (tally.communication or {}).get("against") == "nothing" else None
        for reason, times in tally.not_run.items():
            if reason != redundant:
                lines.append(f"not run: {tally.name}: {reason}: {counted(times, 'structure')}")
        if tally.undecided:
            many = f"{counted(tally.undecided, 'number')} may be off by more than an eighth of the largest"
            lines.append(f"undecided: {tally.name}: {many}, by roundings alone: not compared with anything")
        accepted = [
            f"{name} ({counted(n, 'structure')})" for name, n in tally.changed.items() if name not in tally.refused
        ]
        if accepted:
            what = "the predicate of holds= never refused a result that was changed, to zeros, by one, a hundred times"
            lines.append(f"says nothing: {tally.name}: {what}: {', '.join(accepted)}")
        if one_sided := tally.one_sided if tally.outcome != "failed" else []:
            more = len(one_sided) - MOST_ONE_SIDED
            lines += [f"one-sided: {tally.name}: {text}" for text in one_sided[:MOST_ONE_SIDED]]
            lines += [f"one-sided: {tally.name}: {more} more, all in a report"] if more > 0 else []
        for what, where in tally.findings.items():
            if redundant is None or redundant not in what:
                lines.append(f"finding: {tally.name}: {what}" + (f", first for {where}" if where else ""))
    lines += [f"not claimed, so not drawn: {t.name}: {', '.join(t.unclaimed)}" for t in tallies if t.unclaimed]
    lines += [f"stated, so nothing else was drawn: {t.name}: {'; '.join(t.stated)}" for t in tallies if t.stated]
    lines += [
        f"supports few: {t.name}: {t.law} ({t.engine}): {t.supported:.0%} of {t.drawn_structures:,} structures drawn"
        for t in by_law
        if t.supported < FEW and t.outcome not in IDLE
    ]
    for tally in tallies:
        name, sent = tally.name, tally.communication
        if (tally.contract, tally.implementation) in broken:
            lines.append(f"communication NOT as expected: {broken[tally.contract, tally.implementation] or name}")
        elif sent and sent["against"] != "claim":
            unknown = "communication unknown" if sent["against"] in BOUNDS else "communication as expected"
            checked = BOUNDS.get(sent["against"], f"checked against the {sent['against']} only")
            lines.append(f"{unknown}: {name}: {checked}; the largest case sends {sent['cost']}: {sent['case']}")
    return lines


def weak_points(tallies: Iterable[Tally], devices: int) -> dict[str, list[str]]:
    """The weak points of a pass, by kind: what was left out, few structures, what was never drawn.

    A search ends at a violation, so that nothing is said of what it never drew.
    """
    found: dict[str, list[str]] = {}
    tallies = list(tallies)
    by_law, broken = ([t for t in tallies if t.outcome == outcome] for outcome in ("passed", "failed"))
    usual = {
        engine: median(t.structures for t in by_law if t.engine == engine) for engine in {t.engine for t in by_law}
    }

    def add(kind: str, who: str, what: str) -> None:
        found.setdefault(kind, []).append(f"{who}: {what}")

    for t in by_law:
        who, whole = f"{t.name}, {t.law} ({t.engine})", max(t.drawn_structures, 1)
        for kind, reasons in t.reasons.items():
            if reasons:
                part = sum(reasons.values()) / whole
                add(kind, who, f"{part:.0%} of {counted(whole, 'structure')}: {most_frequent(reasons)}")
        if t.structures < usual[t.engine] / 2:
            add("few structures", who, f"held on {t.structures:,}, where the median is {usual[t.engine]:g}")
        if t.undecided:
            add("undecided", who, f"{counted(t.undecided, 'element')} compared with nothing, for roundings")
    for t in merge(by_law):
        for text in t.one_sided:
            add("choices with one side", t.name, text)
    for name in dict.fromkeys(t.name for t in by_law):
        if ended := [f"{t.law} ({t.engine})" for t in broken if t.name == name]:
            add("searches that ended at a violation", name, ", ".join(ended))
        elif idle := {"simulate", "xla"} - {t.engine for t in by_law if t.name == name and t.structures}:
            add("engines that did not run", name, ", ".join(sorted(idle)))
    unbroken = [t for t in by_law if t.name not in {t.name for t in broken}]
    for contract in dict.fromkeys(t.contract for t in unbroken):
        drawn = [t.drawn for t in unbroken if t.contract == contract]
        for trait, known in (("devices", map(str, range(1, devices + 1))), ("axis tuple", ORDERS)):
            if never := [value for value in known if not any(value in one.get(trait, {}) for one in drawn)]:
                add("never drawn", contract, f"{trait}: {', '.join(never)}")
    return found


def merge_similar(reasons: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """The first of texts that differ in numbers, quoted words, tuples and lists alone, how many, and their count."""
    kinds: dict[str, list[str]] = {}
    for reason in reasons:
        kinds.setdefault(re.sub(r"\([^()]*\)|\[[^\[\]]*\]|'[^']*'|\d+", "…", reason), []).append(reason)
    return [(texts[0], len(texts), sum(reasons[text] for text in texts)) for texts in kinds.values()]


def held_nothing(tally: Tally) -> bool:
    """True if a law failed because it held on none of the structures that were drawn."""
    return tally.outcome == "failed" and not tally.failure and not tally.structures and tally.drawn_structures > 0


def verdict_row(tally: Tally) -> tuple[str, ...]:
    """The verdicts on the structures of one law, with shares unless it is violated, in the order of `VERDICTS`."""
    kinds = (tally.structures, *(sum(counted.values()) for counted in tally.reasons.values()))
    whole = max(tally.drawn_structures, 1)
    shares = [
        f"{count:,} ({count / whole:.0%})" if count and tally.outcome != "failed" else f"{count:,}" for count in kinds
    ]
    share = f" ({tally.excluded / (tally.excluded + whole):.0%} of all)" if tally.drawn_structures else ""
    excluded = f"{tally.excluded:,}{share if tally.excluded and tally.outcome != 'failed' else ''}"
    outcome = "held nothing" if held_nothing(tally) else OUTCOMES[tally.outcome]
    if tally.outcome == "passed" and not tally.structures:
        outcome = "excused" if tally.defects else "unsupported" if tally.unsupported else "not run"
    return (tally.law, tally.engine, outcome, *shares, excluded)


def verdict_table(tallies: Iterable[Tally]) -> str:
    """The verdicts of each law on one implementation, as lines of text; that nothing was compared is a note."""
    compared = [t for t in tallies if t.outcome != "skipped" or set(t.not_run) != {NothingToCompare.TEXT}]
    return aligned([VERDICTS, *map(verdict_row, compared)])


@dataclass(frozen=True)
class Summary:
    """The result of checking a function: one tally per law and engine, and notes on the machine; as text, a table."""

    implementation: Implementation
    tallies: tuple[Tally, ...]
    machine: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([str(self.implementation), verdict_table(self.tallies), *notes(self.tallies), *self.machine])

    def beside_the_table(self) -> str:
        """The lines that add to the failures where every law is broken."""
        known = ("communication NOT as expected: ", "stated, so nothing else was drawn: ")
        return "\n".join([*(line for line in notes(self.tallies) if not line.startswith(known)), *self.machine])
