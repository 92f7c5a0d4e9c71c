"""What was verified: the table for a terminal, and reports, which are data, and pages made of that by templates."""

import base64
import dataclasses
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import jinja2
import pytest

from shardproof.properties.cases.chain import LINKS, is_drawn
from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.laws import LAWS
from shardproof.properties.performance.tables import markdown, table, text_of
from shardproof.properties.programs.built_in import IMPLEMENTATIONS
from shardproof.properties.programs.implementations import full_name
from shardproof.properties.report import communication as sending
from shardproof.properties.report.failures.causes import by_cause, others, told
from shardproof.properties.report.session import facts, report_paths, tallies_of, write_somewhere
from shardproof.properties.report.summary import (
    ORDERS,
    VERDICTS,
    counted,
    notes,
    verdict_row,
    verdict_table,
    weak_points,
)
from shardproof.properties.runner.tally import LINKS_OF_CHAIN, TRIVIAL, Tally, merge

FAILURE = pytest.StashKey[dict[str, dict[str, Any]]]()
"""What a person needs of a test's failure: headline, text, and where script and case were written."""

COLUMNS = (
    "contract", "implementation", "laws", "interpreted", "compiled", "meshes", "axis orders", "dtypes", "largest mesh",
    "compilations", "time",
)  # fmt: skip
TEXTS = ("contract", "implementation", "axis orders")
"""The columns to the left; numbers are to the right."""

MOST_VALUES = 24
"""How many values of a trait the report lists; where there are more, the most frequent."""

OF_LAWS = (*VERDICTS, "cases", "compilations", "time")

ENDINGS = (".html", ".json", ".md")

KIND, FORMAT = "shardproof report", 1
"""What a report says of itself; a reader refuses others."""

MOST_OF_FAILURES = 2**19
"""The most bytes that a page has of failures besides their headlines, which in HTML are up to twice as many."""

MOST_ERROR = 4_000
"""The most characters of what is said of a test that failed without a verdict."""

PAGES = Path(__file__).with_name("pages")

Record = dict[str, Any]
"""A run as JSON-able data."""


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


Shares = list[tuple[str, float]]
"""Values that were drawn, with their shares."""


def histograms(tallies: Iterable[Tally]) -> list[tuple[str, str, Shares, int]]:
    """What was drawn: per contract and trait the values with their shares, so that a blind spot shows, and the others.

    The others are how many values there are besides the most frequent.
    """
    per_contract: dict[str, Tally] = {}
    for tally in tallies:
        per_contract.setdefault(tally.contract, Tally(tally.contract, "", "")).add(tally)
    lines = []
    for contract, tally in sorted(per_contract.items()):
        for trait, histogram in tally.drawn.items():
            whole = sum(histogram.values())
            in_order = sorted(histogram.items(), key=lambda entry: (not entry[0].isdigit(), entry[0].zfill(8)))
            shown = in_order if len(in_order) <= MOST_VALUES else sorted(in_order, key=lambda entry: -entry[1])
            shares = [(value, 100 * times / whole) for value, times in shown[:MOST_VALUES]]
            lines.append((contract, trait, shares, max(0, len(in_order) - MOST_VALUES)))
    return lines


def pairs(tallies: Sequence[Tally]) -> list[tuple[str, ...]]:
    """How often each transformation (a row) was around each other (a column); `-` where that cannot be.

    A structure counts once for each pair in its chain.
    """
    together = Tally("", "", "")
    for tally in tallies:
        together.add(tally)
    lines = []
    for outer in LINKS if together.pairs else ():
        counted = together.pairs.get(outer, {})
        lines.append((outer, *(str(counted.get(inner, 0)) if is_drawn(outer, inner) else "-" for inner in LINKS)))
    return lines


def print_table(tallies: Sequence[Tally], reporter: pytest.TerminalReporter, *, given: bool = False) -> None:
    """Prints the table, as wide as the terminal; for functions that were given, the verdicts by law."""
    width = max(reporter._tw.fullwidth, 140)  # narrower, a row would need several lines
    reporter.section("what was verified", sep="=")
    reporter.write(text_of(table("", COLUMNS, by_implementation(tallies), left=TEXTS), width))
    if given:
        for implementation in dict.fromkeys((t.contract, t.implementation) for t in tallies):
            own = [t for t in tallies if (t.contract, t.implementation) == implementation]
            reporter.write_line(full_name(*implementation))
            reporter.write_line(verdict_table(own))
    for line in (*notes(tallies), total(tallies)):
        reporter.write_line(line)


def by_law(tallies: Iterable[Tally]) -> list[tuple[str, ...]]:
    """What became of what each law drew on each engine, in the order of `OF_LAWS`."""
    added: dict[tuple[str, str], Tally] = {}
    for tally in tallies:
        added.setdefault((tally.law, tally.engine), Tally("", "", tally.law, tally.engine)).add(tally)
    order = {name: i for i, name in enumerate(LAWS)}
    in_order = sorted(added.items(), key=lambda entry: (order.get(entry[0][0], len(order)), entry[0]))
    return [(*verdict_row(t), f"{t.cases:,}", f"{t.compilations:,}", f"{t.seconds:.0f} s") for _, t in in_order]


def heat(tallies: Sequence[Tally]) -> tuple[list[str], list[tuple[str, list[tuple[str, int | None, str]]]]]:
    """The laws, and for each contract the state and the fewest structures of each law, with what that is the least of.

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
    verified = {(t.contract, t.implementation) for t in tallies}
    sent = [] if facts["ended"] else sending.rows(i for i in IMPLEMENTATIONS if (i.contract.name, i.name) in verified)
    return {
        "kind": KIND,
        "format": FORMAT,
        **facts,
        "total": total(tallies) if tallies else "",
        "communication": sending.json_rows(sent),
        "errors": [*errors],
        "verified": [t.to_json() for t in tallies],
    }


def read_record(path: Path) -> Record:
    """The run in a file.

    Raises:
        RequestError: if it is no report of this version.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(f"{path}: expected a report that `pytest --report FILE.json` wrote: {error}") from None
    found = [record.get("kind"), record.get("format")] if isinstance(record, dict) else []
    if found != [KIND, FORMAT]:
        raise RequestError(f"{path}: expected a JSON object with kind={KIND!r} and format={FORMAT}, got {found}")
    return record


def verdict(tallies: Sequence[Tally], record: Record, causes: int) -> tuple[str, str]:
    """Says of a run `held`, `violated`, `failed`, `ended` or `nothing`; and the same in a sentence."""
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
    """What the templates show of a run; of failures, besides their headlines, at most so many bytes."""
    tallies = [Tally.from_json(one) for one in record["verified"]]
    causes = by_cause(t.failure for t in tallies if t.failure)
    shown = list[dict[str, Any]]()
    for group in causes:
        one: dict[str, Any] = {"headline": group[0]["headline"], "others": others(group)}
        for name, content in (("text", told(group)), ("evidence", group[0].get("evidence"))):
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
        "laws": (OF_LAWS, by_law(tallies)),
        "results": [(t.contract, t.implementation, *verdict_row(t)) for t in tallies],
        "result_columns": ("contract", "implementation", *OF_LAWS[:-3]),
        "heat": heat(tallies),
        "drawn": histograms(tallies),
        "pairs": (("around", *LINKS), pairs(tallies)),
        "caption": sending.CAPTION,
    }


def report_text(path: str, record: Record) -> str:
    """The report as JSON, Markdown or a page, by the file's ending."""
    if path.endswith(".json"):
        return json.dumps(record, indent=1) + "\n"
    ending = path.rpartition(".")[2]
    room = MOST_OF_FAILURES if ending == "html" else math.inf
    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PAGES), autoescape=ending == "html", trim_blocks=True, lstrip_blocks=True
    )
    pages.filters |= {
        "markdown": lambda rows, left: markdown(*rows, left=left),
        "base64": lambda text: base64.b64encode(text.encode()).decode(),
    }
    return re.sub(r"\n{3,}", "\n\n", pages.get_template(f"report.{ending}").render(view(record, room))).strip() + "\n"


def write_report(path: Path, record: Record, tell: Callable[[str], None]) -> None:
    """Writes a run to a file, else to the folder for temporary files, else tells it."""
    write_somewhere(path, report_text(str(path), record), tell)


def write_reports(config: pytest.Config, tell: Callable[[str], None], ended: str = "") -> None:
    """Writes the reports that a run is to write.

    Arguments:
        config: the configuration of the run.
        tell: takes a line for each file.
        ended: why the run ended before its end, if it did.
    """
    terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
    ran = [] if terminal is None else [one for kind in ("failed", "error") for one in terminal.stats.get(kind, [])]
    untold = [one for one in ran if not getattr(one, "shardproof_failures", [])]
    errors = [{"test": one.nodeid, "text": str(one.longrepr)[-MOST_ERROR:]} for one in untold]
    if paths := report_paths(config):
        record = record_of([] if terminal is None else tallies_of(config), facts(config, ended), errors)
        for path in paths:
            write_report(path, record, tell)
