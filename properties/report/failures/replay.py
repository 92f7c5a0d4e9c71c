"""Running a recorded failure again: as a pytest item named after its file, or from its script."""

import dataclasses
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import pytest

from shardproof.properties.cases.reading import one_line
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import engine_named
from shardproof.properties.laws import LAWS
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import of_products
from shardproof.properties.programs.violation import DEATHS
from shardproof.properties.report.failures.record import Recorded, parse
from shardproof.properties.report.failures.text import diagnosed, render
from shardproof.properties.runner.child import Source, Task
from shardproof.properties.runner.given import SAID, Given, parse_all
from shardproof.properties.runner.isolation import check_isolated
from shardproof.properties.runner.judging import judge
from shardproof.properties.runner.named import BuiltIn, Named
from shardproof.properties.runner.preconditions import NotAFailure, check_case, check_oracle
from shardproof.properties.runner.programs import Program
from shardproof.properties.runner.stated import GivenError
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
    found = [(path, read(path)) for path in sorted(folder.glob("*.json"))]
    for path, recorded in found:
        if not recorded.built_in:
            raise NotAFailure(f"{path}: {recorded.name!r} is not an implementation of this project")
    return found


def regressions_of(program: Program, held: Named) -> list[tuple[Path, Recorded | NotAFailure]]:
    """The regressions of a program that a module holds, and the files beside that module which are none."""
    found: list[tuple[Path, Recorded | NotAFailure]] = []
    folder = held.path.parent if held.path is not None else Path()
    for path in sorted((folder / OF_PROGRAMS).glob("*.json")):
        try:
            recorded = read(path)
        except NotAFailure as error:
            found.append((path, error))
            continue
        if not recorded.built_in and (recorded.case.contract.name, recorded.program) == (program.name, held.qualname):
            found.append((path, recorded))
    return found


def devices_needed(recorded: Recorded) -> int:
    """How many devices it takes to run a failure again."""
    return 1 if recorded.engine == "simulate" else max(recorded.case.mesh.devices) + 1


def repeat(recorded: Recorded, source: Source, implementation: Implementation) -> None:
    """Checks a recorded case again: in this process, unless it may end it, or takes more devices.

    Raises:
        LawViolation: if the law still does not hold.
        HeldOnNothing: if it is neither broken nor holds: the case is not supported, excused, or cannot be run.
        NotAFailure: if its contract says nothing of such a case.
    """
    if recorded.violated in DEATHS or devices_needed(recorded) > len(jax.devices()):
        run_isolated(recorded, source)
        return
    case = dataclasses.replace(recorded.case, contract=implementation.contract)
    try:
        check_case(recorded.law, case)
        check_oracle(recorded.law, case)
    except ValueError as error:
        raise NotAFailure(f"{implementation}: {one_line(str(error))}") from error
    tally = Tally(implementation.contract.name, implementation.name, recorded.law, recorded.engine)
    verdict = judge(LAWS[recorded.law], implementation, case, engine_named(recorded.engine), tally)
    if verdict.kind != "held":
        raise HeldOnNothing(f"{implementation}: {recorded.law}: not checked: {verdict.kind}: {verdict.reason}")


def run_isolated(recorded: Recorded, source: Source, *, devices: int = 1, platform: str = "cpu") -> None:
    """Checks the recorded case again in a process of its own, which may abort, hang or eat memory.

    Arguments:
        recorded: the failure, all of which is data.
        source: where the function comes from.
        devices: how many devices the process has, if the case needs no more.
        platform: the platform that it runs on.

    Raises:
        LawViolation: if the law still does not hold.
        HeldOnNothing: if it is neither broken nor holds.
        NotAFailure: if the function cannot be imported, or its contract says nothing of such a case.
    """
    available = max(devices, devices_needed(recorded))
    task = Task(
        given=source,
        laws=(recorded.law,),
        engine=recorded.engine,
        scope=Scope(max_devices=available, available=available),
        max_examples=1,
        random_seed=None,
        platform=platform,
        options={"jax_default_matmul_precision": of_products()},
        case=recorded.case.to_json(),
        diagnose=diagnosed,
    )
    found = check_isolated(task)
    if found.violation is not None:
        raise found.violation
    if not found.tally.structures:
        left_out = "; ".join(found.tally.left_out())
        raise HeldOnNothing(f"{recorded.name}: {recorded.law}: not checked: {left_out}")


def loaded(source: Source, recorded: Recorded) -> Implementation:
    """The function, which is of the contract of the recorded case.

    Raises:
        NotAFailure: if it cannot be imported, or is of another.
    """
    try:
        implementation = source.load()
    except GivenError as error:
        raise NotAFailure(one_line(str(error))) from error
    if implementation.contract.name != recorded.case.contract.name:
        raise NotAFailure(f"{source} is a {implementation.contract.name}: expected a {recorded.case.contract.name}")
    return implementation


def source_of(recorded: Recorded, given: Sequence[Given], programs: Iterable[tuple[Program, Given]] = ()) -> Source:
    """Where the function comes from that a failure is replayed with.

    Arguments:
        recorded: the failure.
        given: the functions that `--impl` names.
        programs: the programs of the tests that are named, and how each is imported.

    Raises:
        NotAFailure: if none of them is of the contract of the recorded case, and it is no built-in one.
    """
    contract = recorded.case.contract.name
    for one in given:
        if contract == (one.contract or loaded_program(one)):
            return one
    beside = [(program, one) for program, one in programs if program.name == contract]
    named_so = [one for _, one in beside if one.function == recorded.program]
    if named_so or beside:
        return (named_so or [one for _, one in beside])[0]
    if recorded.built_in:
        return BuiltIn(contract, recorded.name)
    if recorded.listed:
        raise NotAFailure(f"{contract}[{one_line(recorded.name)}]: expected --impl {contract}=MODULE:FUNCTION as well")
    raise NotAFailure(f"{contract}: expected --impl MODULE:PROGRAM, or the file with its program_test, as well")


def loaded_program(given: Given) -> str:
    """The name of the program that `--impl` names."""
    try:
        return given.load().contract.name
    except GivenError as error:
        raise NotAFailure(one_line(str(error))) from error


def given_to(config: pytest.Config) -> tuple[Given, ...]:
    """The functions that `--impl` names, with what other options say of them."""
    return tuple(parse_all(config.getoption("--impl"), *(config.getoption(option) for option in SAID)))


def recheck(file: Path, function: Any = None, **said: str) -> int:
    """Checks a recorded failure again, from its script: 1 while it shows, 0 when it does not, 2 if it cannot be run.

    Arguments:
        file: the file of the failure.
        function: what is checked, a function or a `Program` that the script holds by a name; None: a built-in one.
        said: what is claimed of it, as `check` takes it: `communication`, `overlap` and `claims`.
    """
    try:
        recorded = read(file)
        source: Source = BuiltIn(recorded.case.contract.name, recorded.name)
        if function is not None:
            source = _held_by_the_script(recorded, function, **said)
        implementation = dataclasses.replace(loaded(source, recorded), name=recorded.name)
        repeat(recorded, source, implementation)
    except LawViolation as violation:
        sys.stdout.write(f"{render(violation)}\n")
        return 1
    except Exception as error:
        told = isinstance(error, NotAFailure | HeldOnNothing | GivenError)
        sys.stderr.write(f"{error}\n" if told else traceback.format_exc())
        return 2
    return 0


def _held_by_the_script(
    recorded: Recorded,
    function: Callable[..., Any] | Program,
    communication: str = "",
    overlap: str = "",
    claims: str = "",
) -> Given:
    """A function by the name that the script has for it, by which another process imports the script and finds it."""
    names = vars(sys.modules["__main__"])
    name = next(name for name, value in names.items() if value is function)
    contract = "" if isinstance(function, Program) else f"{recorded.case.contract.name}="
    return Given.parse(f"{contract}__main__:{name}", communication or None, claims or None, overlap or None)


class ReplayItem(pytest.Item):
    """One recorded failure."""

    programs: Sequence[tuple[Program, Given]] = ()

    def runtest(self) -> None:
        """Runs the check; a case that was not checked is no pass."""
        option, refused = self.config.getoption, ""
        try:
            recorded = read(self.path)
            source = source_of(recorded, given_to(self.config), self.programs)
            run_isolated(recorded, source, devices=option("devices"), platform=option("platform"))
        except LawViolation:
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
