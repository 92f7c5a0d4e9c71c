"""Running a recorded failure again, as a pytest item named after its file."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from properties.engines import engine_named
from properties.failures.lookup import NotAFailure, built_in, implementation_of
from properties.failures.record import Recorded, died, parse
from properties.failures.script import script
from properties.implementations import Implementation
from properties.laws.violation import LawViolation
from properties.tally import Tally
from properties.verification import LAWS, verify

REGRESSIONS = Path(__file__).parents[1] / "regressions"
"""Failures that were once there; they are checked before anything else."""


def read(path: Path) -> Recorded:
    """The failure in a file; nothing in it is executed.

    Raises:
        NotAFailure: naming the file and why it cannot be run again.
    """
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise NotAFailure(f"{path}: cannot be read: {error}") from error
    except NotAFailure as error:
        raise NotAFailure(f"{path}: {error}") from error


def files(path: Path) -> list[Path]:
    """The files that a path stands for: itself, or the failures in a folder.

    Raises:
        NotAFailure: if there are none.
    """
    if path.is_dir():
        found = sorted(path.glob("*.json"))
        if not found:
            raise NotAFailure(f"{path}: expected a folder with *.json in it")
        return found
    if not path.exists():
        raise NotAFailure(f"{path}: no such file")
    return [path]


def regressions(folder: Path = REGRESSIONS) -> list[tuple[Path, Recorded]]:
    """The recorded regressions, which are all of this project's own implementations.

    Raises:
        NotAFailure: if one cannot be run again.
    """
    found = []
    for path in sorted(folder.glob("*.json")):
        recorded = read(path)
        if built_in(recorded.implementation) is None:
            raise NotAFailure(f"{path}: {recorded.implementation.name!r} is not an implementation of this project")
        found.append((path, recorded))
    return found


def devices_needed(recorded: Recorded) -> int:
    """How many devices it takes to run a failure again."""
    return 1 if recorded.engine == "simulate" else max(recorded.case.mesh.devices) + 1


def run(recorded: Recorded, implementation: Implementation) -> Tally:
    """Checks the recorded case again; one that ended its process, in a process of its own.

    Raises:
        LawViolation: if the law still does not hold.
    """
    tally = Tally(implementation.contract, implementation.name, recorded.law, recorded.engine)
    if died(recorded.finding):
        violation = LawViolation(implementation, recorded.law, recorded.case, recorded.finding)
        violation.engine = recorded.engine
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "script.py"
            path.write_text(script(violation), encoding="utf-8")
            if subprocess.run([sys.executable, path], capture_output=True, check=False).returncode:
                raise violation
        return tally
    verify(LAWS[recorded.law], implementation, recorded.case, engine_named(recorded.engine), tally)
    return tally


class ReplayItem(pytest.Item):
    """One recorded failure."""

    recorded: Recorded

    def runtest(self) -> None:
        """Runs the check; a known defect or a gap that now explains it is a pass, and said so."""
        tally = run(self.recorded, implementation_of(self.recorded.implementation))
        for name in (*tally.gaps, *tally.defects):
            self.add_report_section("call", "shardproof", f"not checked: {name}")

    def reportinfo(self) -> tuple[Path, None, str]:
        """The file, which is what this item is named after."""
        return self.path, None, f"replay of {self.path.name}"


class ReplayFile(pytest.File):
    """A file given to `--replay`."""

    def collect(self) -> Iterator[ReplayItem]:
        """Its one failure."""
        item = ReplayItem.from_parent(self, name=self.path.stem)
        item.recorded = read(self.path)
        yield item
