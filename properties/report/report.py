"""The table of what was verified, for a terminal; and reports, as data or as pages that templates make from it."""

import base64
import dataclasses
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import jinja2
import pytest

from shardproof.properties.cases.reading import counted
from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.laws import LAWS
from shardproof.properties.performance.tables import markdown, table, text_of
from shardproof.properties.programs.implementations import full_name
from shardproof.properties.report.failures.causes import by_cause, group_text, lines_of_others
from shardproof.properties.report.summary import (
    ORDERS,
    VERDICTS,
    notes,
    verdict_row,
    verdict_table,
    weak_points,
)
from shardproof.properties.runner.tally import LINKS_OF_CHAIN, TRIVIAL, Tally, merge

COLUMNS = (
    "contract", "implementation", "laws", "interpreted", "compiled", "meshes", "axis orders", "dtypes", "largest mesh",
    "compilations", "time",
)  # fmt: skip
ENDINGS = (".html", ".json", ".md")

KIND, FORMAT = "shardproof report", 1
"""The kind and version of a report; a reader refuses others."""

PAGES = Path(__file__).with_name("pages")

Record = dict[str, Any]
"""A run as JSON-able data."""


def structures(tallies: Iterable[Tally], engine: str) -> str:
    """The median and the least number of structures that a law held on, on an engine: `28 (17)`; `-` of no law."""
    counts = [t.structures for t in tallies if t.engine == engine and t.outcome == "passed"]
    return f"{round(median(counts))} ({min(counts)})" if counts else "-"


def row(tallies: Sequence[Tally], implementation: str) -> tuple[str, ...]:
    """The counts of all laws of one implementation, or one contract, as texts, in the order of `COLUMNS`."""
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


def by_implementation(tallies: Sequence[Tally]) -> list[tuple[str, ...]]:
    """One row per implementation."""
    names = sorted({(t.contract, t.implementation) for t in tallies})
    return [row([t for t in tallies if (t.contract, t.implementation) == name], name[1]) for name in names]


def by_contract(tallies: Sequence[Tally]) -> list[tuple[str, ...]]:
    """One row per contract, with the number of its implementations."""
    number = Counter(contract for contract, _ in {(t.contract, t.implementation) for t in tallies})
    anonymous = [dataclasses.replace(t, implementation="") for t in tallies]
    return [row([t for t in anonymous if t.contract == name], str(number[name])) for name in sorted(number)]


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


Shares = list[tuple[str, float]]
"""Values that were drawn, with their shares."""


def histograms(tallies: Iterable[Tally]) -> list[tuple[str, str, Shares, int]]:
    """The traits that were drawn, per contract: the most frequent values with their shares, and how many others."""
    per_contract: dict[str, Tally] = {}
    for tally in tallies:
        per_contract.setdefault(tally.contract, Tally(tally.contract, "", "")).add(tally)
    found, most = [], 24
    for contract, tally in sorted(per_contract.items()):
        for trait, histogram in tally.drawn.items():
            whole = sum(histogram.values())
            in_order = sorted(histogram.items(), key=lambda entry: (not entry[0].isdigit(), entry[0].zfill(8)))
            shown = in_order if len(in_order) <= most else sorted(in_order, key=lambda entry: -entry[1])
            shares = [(value, 100 * times / whole) for value, times in shown[:most]]
            found.append((contract, trait, shares, max(0, len(in_order) - most)))
    return found


def print_table(tallies: Sequence[Tally], reporter: pytest.TerminalReporter, *, given: bool = False) -> None:
    """Prints the table, as wide as the terminal; for given functions, the verdicts by law as well."""
    width = max(reporter._tw.fullwidth, 140)  # narrower, a row would need several lines
    reporter.section("what was verified", sep="=")
    texts = ("contract", "implementation", "axis orders")
    reporter.write(text_of(table("", COLUMNS, by_implementation(tallies), left=texts), width))
    if given:
        for implementation in dict.fromkeys((t.contract, t.implementation) for t in tallies):
            own = [t for t in tallies if (t.contract, t.implementation) == implementation]
            reporter.write_line(full_name(*implementation))
            reporter.write_line(verdict_table(own))
    for line in (*notes(tallies), total(tallies)):
        reporter.write_line(line)


def heat(tallies: Sequence[Tally]) -> tuple[list[str], list[tuple[str, list[tuple[str, int | None, str]]]]]:
    """The laws, and for each contract the state and the fewest structures of each law, and on what it held so rarely.

    The state is `held`, `violated`, or empty where the law held on nothing; then there is no number.
    """
    laws = [name for name in LAWS if any(t.law == name for t in tallies)]
    rows = []
    for contract in sorted({t.contract for t in tallies}):
        cells = list[tuple[str, int | None, str]]()
        for law in laws:
            some = [t for t in tallies if (t.contract, t.law) == (contract, law)]
            held = [t for t in some if t.verifies]
            least = min(held, key=lambda t: t.structures, default=None)
            state = "violated" if any(t.outcome == "failed" for t in some) else "held" if held else ""
            of = "nothing" if least is None else f"{least.name}, {least.engine}"
            cells.append((state, None if least is None else least.structures, of))
        rows.append((contract, cells))
    return laws, rows


def record_of(tallies: Sequence[Tally], facts: Mapping[str, Any], errors: Sequence[Mapping[str, str]]) -> Record:
    """A run as JSON-able data: the facts of it, what was verified, and the tests that failed without a verdict."""
    return {
        "kind": KIND,
        "format": FORMAT,
        **facts,
        "total": total(tallies) if tallies else "",
        "errors": [*errors],
        "verified": [t.to_json() for t in tallies],
    }


def read_record(path: Path) -> Record:
    """The run in a file; raises RequestError if it is no report of this version."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = "no such file" if isinstance(error, FileNotFoundError) else error
        raise RequestError(f"{path}: expected a report that `pytest --report FILE.json` wrote: {why}") from None
    found = [record.get("kind"), record.get("format")] if isinstance(record, dict) else []
    if found != [KIND, FORMAT]:
        raise RequestError(f"{path}: expected a JSON object with kind={KIND!r} and format={FORMAT}, got {found}")
    return record


def verdict(tallies: Sequence[Tally], record: Record, causes: int) -> tuple[str, str]:
    """The verdict on a run, `held`, `violated`, `failed`, `ended` or `nothing`, and a sentence on it."""
    held = [t for t in tallies if t.verifies]
    failed = {t.name for t in tallies if t.outcome == "failed"}
    laws, of = len({t.law for t in held}), len({(t.contract, t.implementation) for t in held})
    known = f"{counted(laws, 'law')} held for {counted(of, 'implementation')}, each on a median (least) of structures: "
    known += f"{structures(held, 'simulate')} interpreted, {structures(held, 'xla')} compiled"
    others = f"{counted(len(record['errors']), 'test')} failed without a verdict" if record["errors"] else ""
    parts = [others, record["ended"]]
    if failed:
        some = f"{len(failed)} of {counted(len({t.name for t in tallies}), 'implementation')}"
        parts.insert(0, f"Laws are violated by {some}, for {counted(causes, 'cause')}")
    else:
        parts.append(known if held and any(parts) else "")
    word = "violated" if failed else "ended" if record["ended"] else "failed" if others else ""
    if word:
        return word, ". ".join(filter(None, parts))
    return ("held", known) if held else ("nothing", "No law held on any case")


def view(record: Record, room: float) -> dict[str, Any]:
    """The values for the templates; failures have at most `room` bytes besides their headlines."""
    tallies = [Tally.from_json(one) for one in record["verified"]]
    causes = by_cause(t.failure for t in tallies if t.failure)
    shown = list[dict[str, Any]]()
    for group in causes:
        one: dict[str, Any] = {"headline": group[0]["headline"], "others": lines_of_others(group)}
        for name, content in (("text", group_text(group)), ("evidence", group[0].get("evidence"))):
            if (size := len(json.dumps(content))) < room:
                one[name], room = content, room - size
        shown.append(one)
    columns = ["implementations" if column == "implementation" else column for column in COLUMNS]
    return {
        **record,
        "verdict": verdict(tallies, record, len(causes)),
        "weak": weak_points(tallies, record["devices"]) if tallies else {},
        "notes": notes(tallies),
        "causes": shown,
        "contracts": (columns, by_contract(tallies)),
        "implementations": (COLUMNS, by_implementation(tallies)),
        "results": [(t.contract, t.implementation, *verdict_row(t)) for t in tallies],
        "result_columns": ("contract", "implementation", *VERDICTS),
        "heat": heat(tallies),
        "drawn": histograms(tallies),
    }


def report_text(path: str, record: Record) -> str:
    """The report as JSON, Markdown or a page, by the file's ending."""
    if path.endswith(".json"):
        return json.dumps(record, indent=1) + "\n"
    ending = path.rpartition(".")[2]
    room = 2**19 if ending == "html" else math.inf  # bytes, which HTML may double
    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PAGES), autoescape=ending == "html", trim_blocks=True, lstrip_blocks=True
    )
    pages.filters |= {
        "markdown": lambda rows, left: markdown(*rows, left=left),
        "base64": lambda text: base64.b64encode(text.encode()).decode(),
    }
    return re.sub(r"\n{3,}", "\n\n", pages.get_template(f"report.{ending}").render(view(record, room))).strip() + "\n"
