"""Running a recorded failure again, as a pytest item named after its file."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import jax
import pytest

from shardproof.properties.cases.reading import one_line
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import engine_named
from shardproof.properties.laws.law import LAWS
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.precision import of_products
from shardproof.properties.programs.violation import DEATHS
from shardproof.properties.report.failures.record import Recorded, parse
from shardproof.properties.report.failures.text import diagnosed
from shardproof.properties.runner.child import Task
from shardproof.properties.runner.given import Given, parse_all
from shardproof.properties.runner.isolation import check_isolated
from shardproof.properties.runner.judging import verify
from shardproof.properties.runner.lookup import Lookup, built_in
from shardproof.properties.runner.named import Named, NotAFailure
from shardproof.properties.runner.preconditions import check_case, check_oracle
from shardproof.properties.runner.programs import meant
from shardproof.properties.runner.tally import HeldOnNothing, Tally
from shardproof.properties.runner.violation import LawViolation

MOST_BYTES = 2**20
"""The largest file that is read; a permutation of 4,096 devices takes a tenth of that."""

REGRESSIONS = Path(__file__).resolve().parents[2] / "regressions"
"""Failures that were once there; they are checked before anything else."""

OF_PROGRAMS = "shardproof_regressions"
"""The folder, beside the module of a program of a user's own, with those of it."""


def text_of(path: Path) -> str:
    """The text of a file.

    Raises:
        NotAFailure: if it cannot be read, or is larger than any that is written.
    """
    try:
        if not path.is_file():  # a device or a pipe may never end
            raise NotAFailure("not a file")
        with path.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise NotAFailure(f"larger than {MOST_BYTES} bytes")
        return content.decode()
    except UnicodeDecodeError as error:
        raise NotAFailure(f"not UTF-8: {error.reason} at byte {error.start}") from error
    except OSError as error:
        raise NotAFailure(f"cannot be read: {error.strerror}") from error


def read(path: Path) -> Recorded:
    """The failure in a file; nothing in it is executed.

    Raises:
        NotAFailure: naming the file and why it cannot be run again, in one line.
    """
    try:
        return parse(text_of(path))
    except NotAFailure as error:
        raise NotAFailure(f"{one_line(str(path))}: {error}") from error


def files(path: Path) -> list[Path]:
    """The files that a path stands for: itself, or the failures in a folder.

    Raises:
        NotAFailure: if there are none.
    """
    if path.is_dir():
        found = sorted(inside for inside in path.glob("*.json") if inside.is_file())
        if not found:
            raise NotAFailure(f"{one_line(str(path))}: expected a folder with *.json in it")
    elif path.exists():
        found = [path]
    else:
        raise NotAFailure(f"{one_line(str(path))}: no such file")
    for one in found:
        if "::" in str(one) or "[" in str(one):
            raise NotAFailure(f"{one_line(str(one))}: pytest takes no path with '::' or '[' in it")
    return found


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


def regressions_of(name: Named) -> list[tuple[Path, Recorded | NotAFailure]]:
    """The recorded regressions of a program, and the files beside its module that are none."""
    found: list[tuple[Path, Recorded | NotAFailure]] = []
    for path in sorted((Path(name.path).parent / OF_PROGRAMS).glob("*.json")):
        try:
            recorded = read(path)
        except NotAFailure as error:
            found.append((path, error))
            continue
        theirs = recorded.implementation
        if theirs.program and (theirs.qualname, _last(theirs.module)) == (name.qualname, _last(name.module)):
            found.append((path, recorded))
    return found


def _last(module: str) -> str:
    return module.rpartition(".")[2]  # what is before it depends on how pytest imports tests


def devices_needed(recorded: Recorded) -> int:
    """How many devices it takes to run a failure again."""
    return 1 if recorded.engine == "simulate" else max(recorded.case.mesh.devices) + 1


def run(recorded: Recorded, implementation: Implementation) -> Tally:
    """Checks the recorded case again, in this process.

    Raises:
        LawViolation: if the law still does not hold.
        HeldOnNothing: if it is neither broken nor holds: the case is not supported, excused, or cannot be run.
        NotAFailure: if it is no case of a program.
    """
    tally = Tally(implementation.contract, implementation.name, recorded.law, recorded.engine)
    if implementation.program is not None:
        check_program_case(recorded)
    verdict = verify(LAWS[recorded.law], implementation, recorded.case, engine_named(recorded.engine), tally)
    if verdict.kind != "held":
        raise HeldOnNothing(f"{implementation}: {recorded.law}: not checked: {verdict.kind}: {verdict.reason}")
    return tally


def check_program_case(recorded: Recorded) -> None:
    """The case is one of its program, which could not be seen before that was imported.

    Raises:
        NotAFailure: if it is not.
    """
    try:
        check_case(recorded.law, recorded.case)
        check_oracle(recorded.law, recorded.case)
    except ValueError as error:
        raise NotAFailure(f"{recorded.implementation}: {one_line(str(error))}") from error


def repeat(recorded: Recorded, lookup: Lookup, implementation: Implementation) -> None:
    """Checks a regression: in this process, unless it may end it, or takes more devices.

    Raises:
        LawViolation: if the law does not hold again.
        HeldOnNothing: if it is neither broken nor holds.
        NotAFailure: if it cannot be run.
    """
    if recorded.violated in DEATHS or devices_needed(recorded) > len(jax.devices()):
        run_isolated(recorded, lookup)
    else:
        run(recorded, implementation)


def run_isolated(recorded: Recorded, lookup: Lookup, *, devices: int = 1, platform: str = "cpu") -> None:
    """Checks the recorded case again in a process of its own, which may abort, hang or eat memory.

    Arguments:
        recorded: what a file says, all of which is data.
        lookup: how the function is found.
        devices: how many devices the process has, if the case needs no more.
        platform: the platform that it runs on.

    Raises:
        LawViolation: if the law still does not hold.
        HeldOnNothing: if it is neither broken nor holds.
        NotAFailure: if the function is not to be imported, or its contract says nothing of such a case.
    """
    available = max(devices, devices_needed(recorded))
    task = Task(
        given=lookup,
        law=recorded.law,
        engine=recorded.engine,
        scope=Scope(max_devices=available, available=available),
        max_examples=1,
        random_seed=None,
        platform=platform,
        precision=of_products(),
        case=recorded.case,
        diagnose=diagnosed,
    )
    with meant(lookup.load()):
        found = check_isolated(task)
    if found.violation is not None:
        raise found.violation
    if not found.tally.structures:
        left_out = "; ".join(found.tally.left_out())
        raise HeldOnNothing(f"{recorded.implementation.name}: {recorded.law}: not checked: {left_out}")


def given_to(config: pytest.Config) -> tuple[Given, ...]:
    """The functions that `--impl` names."""
    return tuple(parse_all(config.getoption("--impl"), []))


class ReplayItem(pytest.Item):
    """One recorded failure."""

    def runtest(self) -> None:
        """Runs the check; a case that was not checked is no pass."""
        option, refused = self.config.getoption, ""
        try:
            recorded = read(self.path)
            lookup = Lookup(recorded.implementation, given_to(self.config))
            run_isolated(recorded, lookup, devices=option("devices"), platform=option("platform"))
        except LawViolation as violation:
            scope = ExitStack()
            self.addfinalizer(scope.close)  # after the report was made, for which a program's contract must be there
            scope.enter_context(meant(violation.implementation))
            raise
        except NotAFailure as error:
            told = one_line(str(self.path))
            refused = str(error) if str(error).startswith(told) else f"{told}: {error}"
        if refused:  # outside of the handler, whose exception pytest would show as well
            pytest.fail(refused, pytrace=False)

    def reportinfo(self) -> tuple[Path, None, str]:
        """The file, which is what this item is named after."""
        return self.path, None, f"replay of {one_line(self.path.name)}"


class ReplayFile(pytest.File):
    """A file given to `--replay`."""

    def collect(self) -> Iterator[ReplayItem]:
        """Its one failure, or what is wrong with the file."""
        yield ReplayItem.from_parent(self, name=one_line(self.path.stem))
