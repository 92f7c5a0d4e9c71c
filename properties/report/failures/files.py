"""The files of a failure: a script that runs alone, and a case that replays."""

import contextlib
import json
import os
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import WrongResult
from shardproof.properties.report.failures.lanes import picture
from shardproof.properties.report.failures.record import identity, record
from shardproof.properties.report.scripts.script import script
from shardproof.properties.report.session import MADE_TEST
from shardproof.properties.runner.named import impl_options, is_built_in, name_of
from shardproof.properties.runner.preconditions import NotAFailure
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
        case: the same as data, which `--replay` takes.
        picture: its timeline, where the law is about one and it can be drawn.
        replay: the command that replays it; empty for a function that has no name to import it by.
    """

    script: Path
    case: Path
    picture: Path
    replay: str

    @property
    def commands(self) -> list[str]:
        """The commands that show the failure again."""
        return [f"python {self.script}", *([self.replay] if self.replay else [])]


def paths(violation: LawViolation) -> Written:
    """Where the files of a violation belong."""
    start = str(FOLDER / identity(violation))
    case = Path(f"{start}.json")
    return Written(Path(f"{start}.py"), case, Path(f"{start}.svg"), replay_command(violation.implementation, case))


def replay_command(implementation: Implementation, case: Path) -> str:
    """The command that replays a failure, from the folder in which it was found; empty if no name finds the function.

    A test of a program that a file of tests holds is named by that file.
    """
    name = None if is_built_in(implementation) else name_of(implementation)
    if name is not None and implementation.program is not None and name.path is not None:
        here, values = Path.cwd().resolve(), vars(sys.modules[name.module]).values()
        tested = any(getattr(value, MADE_TEST, None) is implementation.program for value in list(values))
        if tested and here in name.path.parents:
            return f"pytest {shlex.quote(str(name.path.relative_to(here)))} --replay={case}"
    try:
        options = impl_options(implementation)
    except NotAFailure:
        return ""
    elsewhere = name is not None and name.folder and Path(name.folder) != Path.cwd().resolve()
    return f"{f'PYTHONPATH={shlex.quote(name.folder)} ' if elsewhere and name else ''}{REPLAY}{case}{options}"


def written(violation: LawViolation) -> Written | None:
    """Where the files of a violation are, if they were written."""
    files = paths(violation)
    return files if files.script.exists() and files.case.exists() else None


def write(violation: LawViolation) -> Written:
    """Writes the script and the case; a file is there whole or not at all."""
    files = paths(violation)
    replace(files.script, script(violation))
    replace(files.case, json.dumps(record(violation), indent=1) + "\n")
    if drawn := picture(violation):
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
