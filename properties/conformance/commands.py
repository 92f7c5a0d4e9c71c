"""The command `shardproof conformance`."""

import os
import subprocess
import sys
import time
from pathlib import Path

import click
import msgspec

from shardproof.properties.cases.reading import counted
from shardproof.properties.cases.suggestion import RequestError, did_you_mean
from shardproof.properties.conformance import report
from shardproof.properties.conformance.operations import OPERATIONS
from shardproof.properties.conformance.search import Outcome, Search
from shardproof.properties.conformance.workers import Where, Workers
from shardproof.properties.performance import tables

DEVICES_OF = {"gpu": "cuda or rocm"}
"""The platforms of JAX that another name stands for; its error names the last of them alone."""

QUIET_SECONDS = 10.0
"""The seconds between lines of progress where there is no terminal."""


class Progress:
    """A line on how far a search is, on the error stream: in place on a terminal, else now and then."""

    def __init__(self) -> None:
        self.in_place, self.last_write = sys.stderr.isatty(), time.monotonic()

    def show(self, outcome: Outcome) -> None:
        """Writes the line, unless another was written a moment ago."""
        line = (
            f"{counted(outcome.programs, 'program')} in {outcome.seconds:.0f} s, "
            f"{counted(len(outcome.findings), 'cause')}, {counted(outcome.deaths, 'process', 'es')} ended"
        )
        if self.in_place:
            self.erase()
            click.echo(line, file=sys.stderr, nl=False)
        elif time.monotonic() - self.last_write > QUIET_SECONDS:
            click.echo(line, file=sys.stderr)
            self.last_write = time.monotonic()

    def erase(self) -> None:
        """Erases the line on a terminal."""
        if self.in_place:
            click.echo("\r\x1b[K", file=sys.stderr, nl=False)

    def print(self, line: str) -> None:
        """Prints what was found in place of it."""
        self.erase()
        click.echo(line)


def search(
    minutes: float,
    seed: int,
    operations: str,
    axes: str,
    exhaustive: int,
    where: Where,
    json: Path | None,
    scripts: Path,
) -> Outcome:
    """Searches for some minutes at most, printing each cause, the table and where the scripts are.

    Raises:
        RequestError: if there is no operation, platform or module of a name.
    """
    names = [name for name in operations.split(",") if name]
    for name in names:
        if name not in OPERATIONS:
            raise RequestError(f"--operations={name}: no such operation; {did_you_mean(name, OPERATIONS)}")
    if where.preload:
        sys.path.append(str(Path.cwd()))
    if where.preload or where.platform != "cpu":
        probe(where)
    workers = Workers(max(1, len(os.sched_getaffinity(0))), where)

    progress = Progress()

    def record(outcome: Outcome) -> None:
        progress.show(outcome)
        if json is not None:
            json.write_bytes(msgspec.json.format(msgspec.json.encode(outcome)))

    try:
        found = Search(seed, names, [axes] if axes else ["auto", "explicit"], workers, progress.print)
        outcome = found.search(60 * minutes, exhaustive, record)
    finally:
        workers.close()
        progress.erase()
    click.echo(tables.aligned(report.rows(outcome)))
    click.echo(report.summary(outcome))
    for path in report.write_scripts(outcome, scripts):
        click.echo(f"python {path}")
    return outcome


def probe(where: Where) -> None:
    """Raises RequestError if a process cannot import the module, or has no device of the platform."""
    program = f"import {where.preload or 'jax'}; import jax; jax.devices()"
    env = {**os.environ, "JAX_PLATFORMS": where.platform}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        said = next(reversed([line for line in done.stderr.splitlines() if "Error" in line]), f"exit {done.returncode}")
        wanted = f"{DEVICES_OF.get(where.platform, where.platform)} devices"
        given = f"--import={where.preload}" if where.preload else f"--platform={where.platform}: expected {wanted}"
        raise RequestError(f"{given}: {said[:200]}")


def compare(before: Path, after: Path) -> None:
    """Prints what changed between two runs."""
    one, other = report.read(before), report.read(after)
    click.echo("\n".join(report.compare_outcomes(one, other)) or "nothing changed")
