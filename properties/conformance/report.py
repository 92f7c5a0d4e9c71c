"""Tables of what was found, and what changed between two runs."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from shardproof.properties.cases.reading import counted
from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.conformance.exhaustive import Reached
from shardproof.properties.conformance.operations import OPERATIONS
from shardproof.properties.conformance.search import Outcome
from shardproof.properties.performance import tables

COLUMNS = ("Auto", "gradient, Auto", "vmap, Auto", "Explicit", "gradient, Explicit", "vmap, Explicit", "reduced")

KINDS = ("wrong", "fails", "known", "refused", "right")
"""The kinds of verdicts that a cell reports, the worst first."""


def cell(counts: Mapping[str, int]) -> str:
    """A cell of the table: its worst verdict, with how many of all programs had it."""
    total = sum(counts.get(kind, 0) for kind in KINDS)
    if not total:
        return ""
    bad = [f"{kind} {counts[kind]}" for kind in ("wrong", "fails", "known") if counts.get(kind)]
    if bad:
        return f"{', '.join(bad)} of {total}"
    if counts.get("refused"):
        return f"refused {counts['refused']}" + (f" of {total}" if counts["refused"] < total else "")
    return f"right {total}"


def rows(outcome: Outcome) -> Iterator[list[str]]:
    """The rows of the table: an operation that has run, and a cell of each column."""
    yield ["operation", *COLUMNS]
    for name in sorted(outcome.counts):
        if any(cells := [cell(outcome.counts[name].get(column, {})) for column in COLUMNS]):
            yield [name, *cells]


def markdown(outcome: Outcome) -> str:
    """The table of a page, of those operations alone that are not right everywhere."""
    head, *others = rows(outcome)
    kept = [row for row in others if any(text and not text.startswith("right") for text in row[1:])]
    text = tables.markdown(head, ([f"`{row[0]}`", *row[1:]] for row in kept))
    right = [f"`{row[0]}`" for row in others if row not in kept]
    return f"{text}\n\nRight in this run: {', '.join(right)}."


def format_reached(done: Reached | None) -> str:
    """How far an exhaustive run came, in a line."""
    if done is None:
        return ""
    share = done.combinations / max(1, done.of_combinations)
    return (
        f"all layouts of {done.operations} of {done.of_operations} operations, each at least once; "
        f"{done.combinations} of {done.of_combinations} combinations ({share:.1%})\n"
    )


def summary(outcome: Outcome) -> str:
    """The numbers of a run, in a few lines."""
    columns = sum(1 for of in outcome.counts.values() for counts in of.values() if sum(counts.values()))
    rate = outcome.programs / outcome.seconds if outcome.seconds else 0
    confirmed = [one for one in outcome.findings if one.confirmed]
    values = sum(one.kind.startswith("wrong") for one in confirmed)
    known = ", ".join(f"{name} {count}" for name, count in sorted(outcome.known.items()))
    return (
        f"JAX {outcome.jax} on {outcome.platform}: {counted(outcome.programs, 'program')}, {rate:.1f} a second; "
        f"{len(outcome.counts)} of {len(OPERATIONS)} operations, {columns} cells\n"
        f"{counted(len(confirmed), 'cause')}, of which {values} with wrong values; "
        f"{counted(outcome.deaths, 'process', 'es')} ended, "
        f"{counted(outcome.excused, 'program')} wrong only for what the run had found\n"
        f"{format_reached(outcome.reached)}known defects met: {known or 'none'}"
    )


def write_scripts(outcome: Outcome, folder: Path) -> list[Path]:
    """The scripts of what was found, written to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, finding in enumerate(outcome.findings):
        program = finding.program
        words = finding.kind, program.axes, "_".join(finding.operations)[:60], program.derivative
        if finding.confirmed:
            name = "_".join(filter(None, words)).replace(" ", "_")
            paths.append(folder / f"{number:02}_{name}.py")
            paths[-1].write_text(finding.script, encoding="utf-8")
    return paths


def read(path: Path) -> Outcome:
    """A recorded run.

    Raises:
        RequestError: if the file holds none.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Outcome)
    except (OSError, msgspec.DecodeError) as error:
        raise RequestError(
            f"--compare={path}: expected a file that `shardproof conformance --json` wrote: {error}"
        ) from error


def status(counts: Mapping[str, int]) -> str:
    """The worst verdict of a cell."""
    return next((kind for kind in KINDS if counts.get(kind)), "")


def compare_outcomes(before: Outcome, after: Outcome) -> Iterator[str]:
    """The changes between two runs in what both have run, a line each."""
    for name in sorted(before.counts.keys() & after.counts.keys()):
        for column in COLUMNS:
            one, other = (of.counts[name].get(column, {}) for of in (before, after))
            if status(one) and status(other) and status(one) != status(other):
                yield f"{name}, {column}: {cell(one)} -> {cell(other)}"
    for word, these, those in (("gone", before, after), ("new", after, before)):
        known = {(one.kind, *one.operations, one.program.axes, one.program.derivative) for one in those.findings}
        for finding in these.findings:
            program = finding.program
            if finding.confirmed and (finding.kind, *finding.operations, program.axes, program.derivative) not in known:
                yield f"{word}: {finding.kind}, {program.axes}, {', '.join(finding.operations)}: {finding.detail}"
