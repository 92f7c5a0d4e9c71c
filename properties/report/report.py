"""The table of what was verified: for a terminal, for a person, for a machine."""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median

import pytest

from shardproof.properties.cases.chain import LINKS, composes
from shardproof.properties.laws import LAWS
from shardproof.properties.performance.tables import markdown, table, text_of
from shardproof.properties.programs.built_in import IMPLEMENTATIONS
from shardproof.properties.programs.implementations import called
from shardproof.properties.report import communication as sending
from shardproof.properties.report.failures.causes import by_cause, told
from shardproof.properties.report.summary import VERDICTS, notes, verdict_row, verdict_table
from shardproof.properties.runner.tally import LINKS_OF_CHAIN, TRIVIAL, Tally, merge

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
    lines = []
    for contract, tally in sorted(per_contract.items()):
        for trait, histogram in tally.drawn.items():
            whole = sum(histogram.values())
            in_order = sorted(histogram.items(), key=lambda entry: (not entry[0].isdigit(), entry[0].zfill(8)))
            shown = in_order if len(in_order) <= MOST_VALUES else sorted(in_order, key=lambda entry: -entry[1])
            texts = [f"{value} {100 * times / whole:.1f}%" for value, times in shown[:MOST_VALUES]]
            more = len(in_order) - MOST_VALUES
            lines.append((contract, trait, f"{', '.join(texts)}{f', and {more} more' if more > 0 else ''}"))
    return markdown(("contract", "trait", "values drawn"), lines)


def pairs(tallies: Sequence[Tally]) -> str:
    """How often each transformation (a row) was around each other (a column), in Markdown; `-` where that cannot be.

    A structure counts once for each pair in its chain.
    """
    together = Tally("", "", "")
    for tally in tallies:
        together.add(tally)
    if not together.pairs:
        return ""
    lines = []
    for outer in LINKS:
        counted = together.pairs.get(outer, {})
        lines.append((outer, *(str(counted.get(inner, 0)) if composes(outer, inner) else "-" for inner in LINKS)))
    return markdown(("around", *LINKS), lines, left=1)


def print_table(tallies: Sequence[Tally], reporter: pytest.TerminalReporter, *, given: bool = False) -> None:
    """Prints the table, as wide as the terminal; for functions that were given, the verdicts by law."""
    width = max(reporter._tw.fullwidth, 140)  # narrower, a row would need several lines
    reporter.section("what was verified", sep="=")
    reporter.write(text_of(table("", COLUMNS, by_implementation(tallies), left=TEXTS), width))
    if given:
        for implementation in dict.fromkeys((t.contract, t.implementation) for t in tallies):
            own = [t for t in tallies if (t.contract, t.implementation) == implementation]
            reporter.write_line(called(*implementation))
            reporter.write_line(verdict_table(own))
    for line in (*notes(tallies), total(tallies)):
        reporter.write_line(line)


def by_law(tallies: Iterable[Tally]) -> str:
    """What became of what each law drew on each engine, in Markdown."""
    added: dict[tuple[str, str], Tally] = {}
    for tally in tallies:
        added.setdefault((tally.law, tally.engine), Tally("", "", tally.law, tally.engine)).add(tally)
    columns = (*VERDICTS, "cases", "compilations", "time")
    order = {name: i for i, name in enumerate(LAWS)}
    in_order = sorted(added.items(), key=lambda entry: (order.get(entry[0][0], len(order)), entry[0]))
    lines = [(*verdict_row(t), f"{t.cases:,}", f"{t.compilations:,}", f"{t.seconds:.0f} s") for _, t in in_order]
    return markdown(columns, lines, left=2)


def communication(tallies: Sequence[Tally]) -> list[sending.Row]:
    """What the built-in implementations among those verified send in a fixed example."""
    verified = {(t.contract, t.implementation) for t in tallies}
    return sending.rows(i for i in IMPLEMENTATIONS if (i.contract.name, i.name) in verified)


def report_text(path: str, tallies: Sequence[Tally], header: Sequence[str]) -> str:
    """The report as JSON or Markdown, by the file's ending."""
    if path.endswith(".json"):
        record = {
            "header": list(header),
            "total": total(tallies) if tallies else "",
            "communication": sending.json_rows(communication(tallies)),
            "verified": [t.to_json() for t in tallies],
        }
        text = json.dumps(record, indent=1)
    else:
        listed = "\n".join(f"- {line}" for line in notes(tallies))
        verified = ["\n".join(f"- {line}" for line in header)]
        if tallies:
            columns = ["implementations" if column == "implementation" else column for column in COLUMNS]
            verified += [markdown(columns, by_contract(tallies), left=TEXTS), listed]
            failed = [t.failure for t in tallies if t.failure]
            verified += [f"```text\n{told(group).strip()}\n```" for group in by_cause(failed)]
            verified += [total(tallies)]
        parts = ["## What was verified", "\n\n".join(filter(None, verified))]
        if tallies:
            parts += ["## By implementation", markdown(COLUMNS, by_implementation(tallies), left=TEXTS)]
            parts += ["## By law", by_law(tallies), "## What was drawn", histograms(tallies)]
            parts += ["## Pairs of transformations", table_of_pairs] if (table_of_pairs := pairs(tallies)) else []
        sent = communication(tallies)
        parts += ["## Communication", sending.CAPTION, sending.markdown(sent)] if sent else []
        text = "\n\n".join(filter(None, parts))
    return text + "\n"
