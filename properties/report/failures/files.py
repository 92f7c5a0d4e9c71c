"""The files of a failure: a script that runs alone, a case that replays, which holds no code, and a picture."""

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shlex
import sys
import tempfile
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import msgspec

from shardproof.plugin import MADE_TEST
from shardproof.properties.cases import reading
from shardproof.properties.cases.case import Case, bounded
from shardproof.properties.contracts import contract_of, is_listed
from shardproof.properties.engines import ENGINES
from shardproof.properties.laws import LAWS
from shardproof.properties.laws.communication import MACHINE
from shardproof.properties.laws.law import LawViolation, first_line
from shardproof.properties.performance.choosing import operations_for
from shardproof.properties.performance.lanes import Lanes, gantt, lay_out
from shardproof.properties.performance.timeline import Balanced, timeline
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import Kind
from shardproof.properties.report.scripts.script import script
from shardproof.properties.runner.named import find_name, impl_options, is_built_in, name_of, source_text
from shardproof.properties.runner.preconditions import NotAFailure, check_case

MOST_DEVICES = 256
"""The most devices that a replay makes for XLA, each of which has threads of its own."""
MOST_TEXT, MOST_REASON = 20_000, 300
"""The most characters of what was found, and of the reason for which a file is refused."""

LONGEST = 120
"""The most characters of a name that a person reads; file systems allow 255 bytes, endings included."""


@dataclass(frozen=True)
class Recorded:
    """A failure as a file holds it."""

    headline: str  # the first line of its report
    law: str  # the law that did not hold
    name: str  # the name of the implementation in reports
    built_in: bool  # whether that is one of this project's own; other functions are named on the command line
    program: str  # the name that a module has for the `Program`, if it is one
    engine: str  # the engine that ran it
    violated: Kind  # the kind of violation
    finding: str  # the violation in words
    case: Case  # the case, with the data set on which it shows
    stated: tuple[str, ...] = ()  # the conditions that a program states, in words
    kind: Literal["shardproof failure"] = "shardproof failure"
    format: Literal[5] = 5  # a reader refuses other versions: up to the second a file named a function to import


def failing_case(violation: LawViolation) -> Case:
    """The case with the one data set on which the violation shows, if it is known."""
    if violation.data is None:
        return violation.case
    return dataclasses.replace(violation.case, data=(violation.data,))


def record(violation: LawViolation) -> dict[str, Any]:
    """A violation as JSON-able data."""
    implementation = violation.implementation
    name = name_of(implementation) if implementation.program is not None else None
    recorded = Recorded(
        headline=violation.headline[:MOST_TEXT],
        law=violation.law.name,
        name=implementation.name,
        built_in=is_built_in(implementation),
        program=name.qualname if name else "",
        engine=violation.engine,
        violated=violation.kind,
        finding=violation.finding[:MOST_TEXT],
        case=failing_case(violation).named(),
        stated=implementation.stated,
    )
    content: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(recorded))
    return content


def identity(violation: LawViolation) -> str:
    """A readable name for a failure, the same whenever it is the same function, law and case."""
    implementation, function = violation.implementation, find_name(violation.implementation.function)
    content = record(violation)
    what = {key: content[key] for key in ("law", "engine", "case", "name")} | {"function": str(function)}
    if not function.importable:  # others of its name are others
        what["source"] = source_text(implementation.function)
    digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:8]
    words = f"{implementation.contract.name}-{implementation.name}-{violation.title}"
    return f"{re.sub(r'[^A-Za-z0-9_]+', '-', words)[:LONGEST].strip('-')}-{digest}"


def parse(text: str) -> Recorded:
    """The failure that `record` described, without any import; raises NotAFailure for other or damaged text."""
    try:
        content = reading.load_json(text)
        if not isinstance(content, dict) or content.get("kind") != Recorded.kind:
            raise NotAFailure(f"not a failure of this suite: expected a JSON object with kind={Recorded.kind!r}")
        if content.get("format") != Recorded.format:
            found = reading.shown(content.get("format"))
            raise NotAFailure(f"format={found}: expected {Recorded.format}: another version's")
        recorded = reading.decode(Recorded, content)
        recorded = dataclasses.replace(recorded, case=bounded(recorded.case, contract_of))
        if wrong := _wrong(recorded):
            raise NotAFailure(wrong)
        if is_listed(recorded.case.contract):  # a program's case is checked once it is imported
            check_case(recorded.law, recorded.case)
    except ValueError as error:
        raise NotAFailure(reading.one_line(str(error))[:MOST_REASON]) from error
    return recorded


def _wrong(recorded: Recorded) -> str:
    """The error in the law or engine of a record; empty if there is none."""
    engine, case = recorded.engine, recorded.case
    for what, value, known in (("law", recorded.law, LAWS), ("engine", engine, ENGINES)):
        if value not in known:
            return f"{what}={reading.shown(value)}: expected one of {', '.join(known)}"
    engines = LAWS[recorded.law].engines
    if engine not in engines:
        return f"engine={engine!r}: the law {recorded.law!r} is checked by {', '.join(engines)}"
    if engine == "simulate" and not all(link.compiled for link in case.links):
        return f"chain={case.chain}: expected none without `jit` on the engine {engine!r}"
    if engine == "xla" and max(case.mesh.devices) >= MOST_DEVICES:
        return f"devices={reading.shown(case.mesh.devices)}: expected numbers below {MOST_DEVICES}"
    return ""


FOLDER = Path(".shardproof") / "failures"
"""The folder of failures, below the working directory."""


@dataclass(frozen=True)
class Written:
    """The files of a failure."""

    script: Path  # exits with 1 while the bug is there, and 0 once it is fixed
    case: Path  # the same as data, which `--replay` takes
    picture: Path  # its timeline, where the law is about one and it can be drawn
    replay: str  # the command that replays it; empty for a function that has no name to import it by

    @property
    def commands(self) -> list[str]:
        """The commands that show the failure again."""
        return [f"python {self.script}", *([self.replay] if self.replay else [])]


def paths(violation: LawViolation) -> Written:
    """The paths of the files of a violation, written or not."""
    start = str(FOLDER / identity(violation))
    case = Path(f"{start}.json")
    return Written(Path(f"{start}.py"), case, Path(f"{start}.svg"), replay_command(violation.implementation, case))


def replay_command(implementation: Implementation, case: Path) -> str:
    """The command that replays a failure, from the folder in which it was found; empty if the function has no name.

    A program that is tested in a file of tests is named by that file.
    """
    replay = f"pytest --replay={case}"  # with the equals sign: else pytest looks for its settings beside the file
    if is_built_in(implementation):
        return replay
    name = name_of(implementation)
    if name is None:
        return ""
    if implementation.program is not None and name.path is not None:
        here, values = Path.cwd().resolve(), vars(sys.modules[name.module]).values()
        tested = any(getattr(value, MADE_TEST, None) is implementation.program for value in list(values))
        if tested and here in name.path.parents:
            return f"pytest {shlex.quote(str(name.path.relative_to(here)))} --replay={case}"
    elsewhere = name.folder and Path(name.folder) != Path.cwd().resolve()
    start = f"PYTHONPATH={shlex.quote(name.folder)} " if elsewhere else ""
    return f"{start}{replay}{impl_options(implementation, name)}"


def find_files(violation: LawViolation) -> Written | None:
    """The files of a violation, if they were written."""
    files = paths(violation)
    return files if files.script.exists() and files.case.exists() else None


def write(violation: LawViolation) -> Written:
    """Writes the script and the case, each in one step."""
    files = paths(violation)
    ignore = FOLDER.parent / ".gitignore"
    if not ignore.exists():
        replace(ignore, "*\n")
    replace(files.script, script(violation))
    replace(files.case, json.dumps(record(violation), indent=1) + "\n")
    if drawn := drawing(violation):
        replace(files.picture, drawn)
    return files


def write_if_possible(violation: LawViolation) -> tuple[Written | None, str]:
    """The files of a violation, or why there are none: a failure is reported even where it cannot be written."""
    try:
        return write(violation), ""
    except Exception as error:  # a script takes runs of the implementation, which may raise anything
        with contextlib.suppress(OSError):  # the script of an earlier run would be taken for that of this one
            paths(violation).script.unlink(missing_ok=True)
        if isinstance(error, OSError):
            reason = f"{error.strerror}: {error.filename}" if error.filename else str(error)
            return None, f"no files: {FOLDER} cannot be written: {reason}"
        return None, f"no script: {first_line(error).removeprefix('WrongResult: ')}"


def replace(path: Path, text: str) -> None:
    """Writes a file in one step: a reader, or another worker, sees the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def lanes_of(violation: LawViolation) -> Lanes:
    """The timeline of every resource, on the machine of the law; empty for other laws."""
    if violation.kind != "overlap":
        return Lanes(Fraction(0))
    implementation, case = violation.implementation, violation.case
    try:
        operations = operations_for(implementation, case)
        machine = Balanced.of(operations, case.mesh, case.axes)
        if violation.broken.of_derivative:
            operations = operations_for(implementation, case, gradient=True)
            machine = machine if machine.bytes else Balanced.of(operations, case.mesh, case.axes)
        return lay_out(timeline(operations, machine))
    except Exception:  # a failure is reported even where it cannot be drawn: its function may raise anything
        return Lanes(Fraction(0))


def drawing(violation: LawViolation) -> str:
    """The picture as an SVG; empty without a timeline, or where drawsvg is not installed."""
    lanes = lanes_of(violation)
    if not lanes.total:
        return ""
    whose = " and its gradient" if violation.broken.of_derivative else ""
    title = [
        f"{violation.implementation}{whose} on mesh {violation.case.mesh}",
        f"of {', '.join(map(str, violation.case.operands))}, {MACHINE}",
        "times in parts of all products of the function",
    ]
    try:
        return str(gantt(title, lanes, lambda part: f"{float(part):.3g}").as_svg())
    except ModuleNotFoundError:
        return ""
