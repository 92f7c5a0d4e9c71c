"""The table of what was verified: for a terminal, for a person, for a machine."""

import dataclasses
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import pytest
from rich.console import Console
from rich.table import Column, Table

from shardproof.properties.cases.chain import LINKS, composes
from shardproof.properties.known_defects import DEFECTS
from shardproof.properties.laws import LAWS
from shardproof.properties.programs.built_in import IMPLEMENTATIONS
from shardproof.properties.programs.implementations import Implementation, called
from shardproof.properties.programs.violation import NothingToCompare
from shardproof.properties.report import communication as table
from shardproof.properties.report.failures.text import by_cause, told
from shardproof.properties.runner.tally import LINKS_OF_CHAIN, TRIVIAL, Tally, merge

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
        not_run = {reason: times for reason, times in tally.not_run.items() if reason != told}
        findings = {what: where for what, where in tally.findings.items() if told is None or told not in what}
        for reason, times in not_run.items():
            lines.append(f"not run: {tally.name}: {reason}: {counted(times, 'structure')}")
        if tally.undecided:
            many = f"{counted(tally.undecided, 'number')} may be off by more than an eighth of the largest"
            lines.append(f"undecided: {tally.name}: {many}, by roundings alone: not held to anything")
        for what, where in findings.items():
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


FAILURE = pytest.StashKey[dict[str, dict[str, str]]]()
"""What a person needs of a test's failure: headline, text, and where script and case were written."""

COLUMNS = (
    "contract", "implementation", "laws", "interpreted", "compiled", "meshes", "axis orders", "dtypes", "largest mesh",
    "compilations", "time",
)  # fmt: skip
TEXTS = ("contract", "implementation", "axis orders")
"""The columns to the left; numbers are to the right."""

MOST_VALUES = 24
"""How many values of a trait the report lists; where there are more, the most frequent."""

ORDERS = ("one axis", "mesh order", "permuted")


def structures(tallies: Iterable[Tally], engine: str) -> str:
    """The median and the least number of structures that a law held on, on an engine: `28 (17)`; `-` of no law."""
    counts = [t.structures for t in tallies if t.engine == engine and t.outcome == "passed"]
    return f"{round(median(counts))} ({min(counts)})" if counts else "-"


def row(tallies: Sequence[Tally], implementation: str) -> tuple[str, ...]:
    """What was counted by all laws of one implementation, or one contract, as texts, in the order of `COLUMNS`."""
    (tally,) = merge(tallies)
    return (
        tally.contract,
        implementation + (" (failed)" if tally.outcome != "passed" else ""),
        str(len(tally.law.split(", "))),
        structures(tallies, "simulate"),
        structures(tallies, "xla"),
        f"{len(tally.meshes):,}",
        ", ".join(order for order in ORDERS if order in tally.drawn.get("axis tuple", {})),
        str(len(tally.drawn.get("dtype", {}))),
        f"{tally.largest:,}",
        f"{tally.compilations:,}",
        f"{tally.seconds:.0f} s",
    )


def by_implementation(tallies: Iterable[Tally]) -> list[tuple[str, ...]]:
    """One row per implementation."""
    tallies = list(tallies)
    names = sorted({(t.contract, t.implementation) for t in tallies})
    return [row([t for t in tallies if (t.contract, t.implementation) == name], name[1]) for name in names]


def by_contract(tallies: Sequence[Tally]) -> list[tuple[str, ...]]:
    """One row per contract, with the number of its implementations."""
    number = Counter(contract for contract, _ in {(t.contract, t.implementation) for t in tallies})
    return [
        row(
            [dataclasses.replace(t, implementation="") for t in tallies if t.contract == contract],
            str(number[contract]),
        )
        for contract in sorted(number)
    ]


def total(tallies: Sequence[Tally]) -> str:
    """The run in one sentence."""
    meshes = set().union(*(t.meshes for t in tallies))
    checked, lengths = sum(t.structures for t in tallies), Counter[int]()
    for tally in tallies:
        lengths.update({int(length): times for length, times in tally.drawn.get(LINKS_OF_CHAIN, {}).items()})
    trivial = sum(tally.drawn.get(TRIVIAL, {}).get("yes", 0) for tally in tallies)
    transformed, chained = (sum(n for length, n in lengths.items() if length >= least) for least in (1, 2))
    return (
        f"structures that each law held on, median (least): {structures(tallies, 'simulate')} interpreted, "
        f"{structures(tallies, 'xla')} compiled; {len(meshes):,} meshes, "
        f"{sum(t.compilations for t in tallies):,} compilations; "
        f"{transformed / max(checked, 1):.0%} under a transformation, "
        f"{chained / max(checked, 1):.0%} under a chain of two or three, "
        f"and {trivial / max(checked, 1):.0%} trivial"
    )


def histograms(tallies: Iterable[Tally]) -> str:
    """What was drawn, in Markdown: per contract and trait the share of each value, so that a blind spot shows."""
    per_contract: dict[str, Tally] = {}
    for tally in tallies:
        per_contract.setdefault(tally.contract, Tally(tally.contract, "", "")).add(tally)
    lines = ["| contract | trait | values drawn |", "| --- | --- | --- |"]
    for contract, tally in sorted(per_contract.items()):
        for trait, histogram in tally.drawn.items():
            whole = sum(histogram.values())
            in_order = sorted(histogram.items(), key=lambda entry: (not entry[0].isdigit(), entry[0].zfill(8)))
            shown = in_order if len(in_order) <= MOST_VALUES else sorted(in_order, key=lambda entry: -entry[1])
            texts = [f"{value} {100 * times / whole:.1f}%" for value, times in shown[:MOST_VALUES]]
            more = len(in_order) - MOST_VALUES
            lines.append(f"| {contract} | {trait} | {', '.join(texts)}{f', and {more} more' if more > 0 else ''} |")
    return "\n".join(lines)


def pairs(tallies: Sequence[Tally]) -> str:
    """How often each transformation (a row) was around each other (a column), in Markdown; `-` where that cannot be.

    A structure counts once for each pair in its chain.
    """
    together = Tally("", "", "")
    for tally in tallies:
        together.add(tally)
    if not together.pairs:
        return ""
    lines = [f"| around | {' | '.join(LINKS)} |", "| --- |" + " ---: |" * len(LINKS)]
    for outer in LINKS:
        counted = together.pairs.get(outer, {})
        cells = (str(counted.get(inner, 0)) if composes(outer, inner) else "-" for inner in LINKS)
        lines.append(f"| {outer} | {' | '.join(cells)} |")
    return "\n".join(lines)


def print_table(tallies: Sequence[Tally], reporter: pytest.TerminalReporter, *, given: bool = False) -> None:
    """Prints the table, as wide as the terminal; for functions that were given, the verdicts by law."""
    table = Table(*(Column(column, justify="left" if column in TEXTS else "right") for column in COLUMNS))
    for cells in by_implementation(tallies):
        table.add_row(*cells)
    width = max(reporter._tw.fullwidth, 140)  # narrower, a row would need several lines
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(table)
    reporter.section("what was verified", sep="=")
    reporter.write(console.file.getvalue())  # type: ignore[attr-defined]
    if given:
        for implementation in dict.fromkeys((t.contract, t.implementation) for t in tallies):
            own = [t for t in tallies if (t.contract, t.implementation) == implementation]
            reporter.write_line(called(*implementation))
            reporter.write_line(verdict_table(own))
    for line in (*notes(tallies), total(tallies)):
        reporter.write_line(line)


def markdown(rows: Iterable[tuple[str, ...]], second: str = "implementation") -> str:
    """Rows in Markdown, under `COLUMNS`, of which the second may have another name."""
    columns = [second if c == "implementation" else c for c in COLUMNS]
    lines = [" | ".join(columns), " | ".join("---" if c in TEXTS else "---:" for c in columns)]
    lines += [" | ".join(cells) for cells in rows]
    return "\n".join(f"| {line} |" for line in lines)


def by_law(tallies: Iterable[Tally]) -> str:
    """What became of what each law drew on each engine, in Markdown."""
    added: dict[tuple[str, str], Tally] = {}
    for tally in tallies:
        added.setdefault((tally.law, tally.engine), Tally("", "", tally.law, tally.engine)).add(tally)
    columns = (*VERDICTS, "cases", "compilations", "time")
    lines = ["| " + " | ".join(columns) + " |", "| --- | --- |" + " ---: |" * (len(columns) - 2)]
    order = {name: i for i, name in enumerate(LAWS)}
    for _, t in sorted(added.items(), key=lambda entry: (order.get(entry[0][0], len(order)), entry[0])):
        cells = (*verdict_row(t), f"{t.cases:,}", f"{t.compilations:,}", f"{t.seconds:.0f} s")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def communication(tallies: Sequence[Tally]) -> list[table.Row]:
    """What the built-in implementations among those verified send in a fixed example."""
    verified = {(t.contract, t.implementation) for t in tallies}
    return table.rows(i for i in IMPLEMENTATIONS if (i.contract.name, i.name) in verified)


def report_text(path: str, tallies: Sequence[Tally], header: Sequence[str]) -> str:
    """The report as JSON or Markdown, by the file's ending."""
    if path.endswith(".json"):
        record = {
            "header": list(header),
            "total": total(tallies) if tallies else "",
            "communication": table.json_rows(communication(tallies)),
            "verified": [t.to_json() for t in tallies],
        }
        text = json.dumps(record, indent=1)
    else:
        listed = "\n".join(f"- {line}" for line in notes(tallies))
        verified = ["\n".join(f"- {line}" for line in header)]
        if tallies:
            verified += [markdown(by_contract(tallies), "implementations"), listed]
            failed = [t.failure for t in tallies if t.failure]
            verified += [f"```text\n{told(group).strip()}\n```" for group in by_cause(failed)]
            verified += [total(tallies)]
        parts = ["## What was verified", "\n\n".join(filter(None, verified))]
        if tallies:
            parts += ["## By implementation", markdown(by_implementation(tallies))]
            parts += ["## By law", by_law(tallies), "## What was drawn", histograms(tallies)]
            parts += ["## Pairs of transformations", table_of_pairs] if (table_of_pairs := pairs(tallies)) else []
        sent = communication(tallies)
        parts += ["## Communication", table.CAPTION, table.markdown(sent)] if sent else []
        text = "\n\n".join(filter(None, parts))
    return text + "\n"
