"""The files of a failure: a script that runs alone, and a case that replays."""

import contextlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.programs.program import WrongResult
from shardproof.properties.report.failures.lanes import picture
from shardproof.properties.report.failures.record import identity, record
from shardproof.properties.report.scripts.script import script
from shardproof.properties.runner.lookup import Lookup
from shardproof.properties.runner.named import NotAFailure, importable, named
from shardproof.properties.runner.violation import LawViolation

FOLDER = Path(".shardproof") / "failures"
"""Where failures are written, below the working directory."""
REPLAY = "pytest --replay="
"""With the equals sign: pytest looks for its settings beside an argument of its own."""


@dataclass(frozen=True)
class Written:
    """Where a failure was written.

    Arguments:
        script: exits with 1 while the bug is there, and 0 once it is fixed.
        case: what `--replay` takes; None of a function that has no name to import it by, which cannot be found again.
        impl: what `--impl` must name for that, where a file may not have the function imported; else empty.
        picture: its timeline, where the law is about one and it can be drawn.
    """

    script: Path
    case: Path | None
    impl: str = ""
    picture: Path | None = None

    @property
    def commands(self) -> list[str]:
        """The commands that show the failure again."""
        impl = f" --impl {self.impl}" if self.impl else ""
        replay = [f"{REPLAY}{self.case}{impl}"] if self.case else []
        return [f"python {self.script}", *replay]


def paths(violation: LawViolation) -> Written:
    """Where the files of a violation belong."""
    name = identity(violation)
    function = named(violation.implementation)
    lookup, impl = Lookup(function), ""
    try:
        lookup.source()
    except NotAFailure:  # an installed package's, say
        impl = str(lookup)
    replays = importable(function) and (function.program or CONTRACTS[function.contract].listed)
    case = FOLDER / f"{name}.json" if replays else None
    return Written(FOLDER / f"{name}.py", case, impl, FOLDER / f"{name}.svg")


def written(violation: LawViolation) -> Written | None:
    """Where the files of a violation are, if they were written."""
    files = paths(violation)
    return files if files.script.exists() and (files.case is None or files.case.exists()) else None


def write(violation: LawViolation) -> Written:
    """Writes the script and the case; a file is there whole or not at all."""
    files = paths(violation)
    replace(files.script, script(violation))
    if files.case is not None:
        replace(files.case, json.dumps(record(violation), indent=1) + "\n")
    if files.picture is not None and (drawn := picture(violation)):
        replace(files.picture, drawn)
    return files


def write_if_possible(violation: LawViolation) -> tuple[Written | None, str]:
    """The files of a violation, or why there are none: a failure is told even where it cannot be written down."""
    try:
        return write(violation), ""
    except OSError as error:
        _forget(violation)
        reason = f"{error.strerror}: {error.filename}" if error.filename else str(error)
        return None, f"no files: {FOLDER} cannot be written: {reason}"
    except Exception as error:  # what the script asks of the implementation may raise anything
        _forget(violation)
        first = str(error).partition("\n")[0]
        return None, f"no script: {first if isinstance(error, WrongResult) else f'{type(error).__name__}: {first}'}"


def _forget(violation: LawViolation) -> None:
    """Removes the script of an earlier run, which would be taken for that of this one."""
    with contextlib.suppress(OSError):
        paths(violation).script.unlink(missing_ok=True)


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
