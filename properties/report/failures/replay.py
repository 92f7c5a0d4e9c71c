"""Replays of recorded failures, by pytest or from their scripts: the option `--replay`, and regressions."""

import contextlib
import dataclasses
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import pytest

from shardproof.plugin import MADE_TEST
from shardproof.properties.cases.reading import one_line
from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.contracts import Scope, is_listed
from shardproof.properties.engines import ENGINES
from shardproof.properties.laws import LAWS
from shardproof.properties.laws.law import LawViolation
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import matmul_precision
from shardproof.properties.programs.violation import DEATHS
from shardproof.properties.report.failures.files import Recorded, parse
from shardproof.properties.report.failures.text import find_diagnosis, render
from shardproof.properties.report.session import GIVEN, usage_errors
from shardproof.properties.runner.child import Source, Task, check_case_again
from shardproof.properties.runner.given import Given
from shardproof.properties.runner.isolation import check_isolated
from shardproof.properties.runner.named import BuiltIn, Named, held_by_a_module
from shardproof.properties.runner.preconditions import NotAFailure
from shardproof.properties.runner.programs import Program
from shardproof.properties.runner.search import Finding
from shardproof.properties.runner.tally import HeldOnNothing

MOST_BYTES = 2**20
"""The largest file that is read; a permutation of 4,096 devices takes a tenth of that."""

REGRESSIONS = Path(__file__).resolve().parents[2] / "regressions"
"""Recorded failures of this project's implementations, which are checked before anything else."""

OF_PROGRAMS = "shardproof_regressions"
"""The folder of a user's regressions, beside the module of the program."""


def read(path: Path) -> Recorded:
    """The failure in a file, of which nothing is executed; raises NotAFailure, with the path and the reason."""
    reason = "not a file"
    try:
        if path.is_file():  # a device or a pipe may never end
            if path.stat().st_size <= MOST_BYTES:
                return parse(path.read_text(encoding="utf-8"))
            reason = f"larger than {MOST_BYTES} bytes"
    except UnicodeDecodeError as error:
        reason = f"not UTF-8: {error.reason} at byte {error.start}"
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    except NotAFailure as error:
        reason = str(error)
    beside = path.with_suffix(".json")
    if path != beside and beside.is_file():  # the script of a failure, or its picture
        reason = f"expected {one_line(beside.name)}, which has the failure as data"
    raise NotAFailure(f"{one_line(str(path))}: {reason}")


def files(path: Path) -> list[Path]:
    """The file itself, or the failures in a folder; raises NotAFailure if there are none."""
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


def regressions_of(program: Program, held: Named) -> list[tuple[Path, Recorded | NotAFailure]]:
    """The regressions of a program in a module, and the files beside that module that have none."""
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
    """The number of devices that it takes to run a failure again."""
    return 1 if recorded.engine == "simulate" else max(recorded.case.mesh.devices) + 1


def repeat(recorded: Recorded, source: Source, implementation: Implementation) -> None:
    """Checks a recorded case again: in this process, unless it may end it, or takes more devices.

    Raises LawViolation if the law does not hold, HeldOnNothing if it is not checked, as the case is not supported,
    excused, or cannot be run, and NotAFailure if it is no case of the contract.
    """
    wanted = recorded.case.contract.name
    if implementation.contract.name != wanted:
        raise NotAFailure(f"{source} is a {implementation.contract.name}: expected a {wanted}")
    if recorded.violated in DEATHS or devices_needed(recorded) > len(jax.devices()):
        run_isolated(recorded, source)
        return
    case = dataclasses.replace(recorded.case, contract=implementation.contract)
    try:
        found = check_case_again(LAWS[recorded.law], implementation, case, recorded.engine)
    except NotAFailure as error:
        raise NotAFailure(f"{implementation}: {error}") from error
    _require_held(recorded, found)


def _require_held(recorded: Recorded, found: Finding) -> None:
    if found.violation is not None:
        raise found.violation from found.violation.__cause__
    if not found.tally.structures:
        left_out = "; ".join(found.tally.left_out())
        raise HeldOnNothing(f"{recorded.name}: {recorded.law}: not checked: {left_out}")


def run_isolated(recorded: Recorded, source: Source, *, devices: int = 1, platform: str = "cpu") -> None:
    """Does what `repeat` does in a process of its own, which may abort, hang or take all memory."""
    available = max(devices, devices_needed(recorded))
    task = Task(
        given=source,
        laws=(recorded.law,),
        engine=recorded.engine,
        scope=Scope(max_devices=available, available=available),
        max_examples=1,
        random_seed=None,
        platform=platform,
        options={"jax_default_matmul_precision": matmul_precision()},
        case=recorded.case.to_json(),
        diagnose=find_diagnosis,
    )
    _require_held(recorded, check_isolated(task))


def source_of(
    recorded: Recorded, given: Sequence[Given], programs: Iterable[tuple[Program, Given]] | None = None
) -> Source:
    """The source of the function that a failure is replayed with: given, a program's, or built in; else NotAFailure.

    Programs are those of the test files that pytest is run on; None without pytest.
    """
    contract, known = recorded.case.contract.name, list(programs or ())
    named = [(one, one.contract or one.load().contract.name) for one in given]
    for one, name in named:
        if name == contract:
            return one
    tested = [one for program, one in known if program.name == contract]
    if tested:
        return next((one for one in tested if one.function == recorded.program), tested[0])
    if recorded.built_in:
        return BuiltIn(contract, recorded.name)
    listed = is_listed(recorded.case.contract)
    whose = f"{contract}[{one_line(recorded.name)}]" if listed else contract
    if others := ", ".join(f"{one} is {name}" for one, name in (*named, *((one, p.name) for p, one in known))):
        raise NotAFailure(f"{others}: the failure is of {whose}")
    tests = "" if listed or programs is None else ", or the file with its program_test,"
    form = f"{contract}=MODULE:FUNCTION" if listed else "MODULE:PROGRAM"
    raise NotAFailure(f"{whose}: expected --impl {form}{tests} as well")


def recheck(file: Path, function: Any = None, **said: str) -> int:
    """Checks a recorded failure again, from its script: 1 while it shows, 0 when it does not, 2 if it cannot be run.

    The script has a name for the function or `Program`; without one a built-in one is checked. Its claims are `said`.
    """
    try:
        recorded = read(file)
        contract = recorded.case.contract.name
        source: Source = BuiltIn(contract, recorded.name)
        if function is not None:  # by the name that the script has for it, another process imports it from there
            name = next(name for name, value in vars(sys.modules["__main__"]).items() if value is function)
            of = "" if isinstance(function, Program) else f"{contract}="
            claimed = (said.get(each) for each in ("communication", "claims", "overlap"))
            source = Given.parse(f"{of}__main__:{name}", *claimed)
        repeat(recorded, source, dataclasses.replace(source.load(), name=recorded.name))
    except LawViolation as violation:
        sys.stdout.write(f"{render(violation)}\n")
        return 1
    except Exception as error:
        expected = isinstance(error, RequestError | HeldOnNothing)
        sys.stderr.write(f"{error}\n" if expected else traceback.format_exc())
        return 2
    return 0


class ReplayItem(pytest.Item):
    """One recorded failure, in a file given to `--replay`."""

    programs: Sequence[tuple[Program, Given]] = ()

    @classmethod
    def of(cls, session: pytest.Session, path: Path) -> "ReplayItem":
        """The item of a file, wherever that is."""
        root, name = session.config.rootpath, one_line(path.stem)
        shown = path.relative_to(root) if root in path.parents else path
        return cls.from_parent(session, name=name, path=path, nodeid=f"{shown.as_posix()}::{name}")

    def runtest(self) -> None:
        """Runs the check; a case that was not checked is no pass."""
        option = self.config.getoption
        try:
            recorded = read(self.path)
            source = source_of(recorded, [one.given for one in self.config.stash[GIVEN]], self.programs)
            run_isolated(recorded, source, devices=option("devices"), platform=option("platform"))
        except NotAFailure as error:
            start = one_line(str(self.path))
            raise error if str(error).startswith(start) else NotAFailure(f"{start}: {error}") from None

    def reportinfo(self) -> tuple[Path, None, str]:
        """The file, which is what this item is named after."""
        return self.path, None, f"replay of {one_line(self.path.name)}"


REPLAYED = pytest.StashKey[list[Path]]()


def choose_failures(config: pytest.Config) -> None:
    """Has the failures of `--replay` run in place of all tests, with as many devices as they need."""
    with usage_errors("--replay: "):
        named = [path.resolve() for name in config.getoption("--replay") for path in files(Path(name))]
    found: dict[Path, Recorded] = {}
    for path in named:
        with contextlib.suppress(NotAFailure):  # it fails when it is run, after all others
            found[path] = read(path)
    # as in a run, values come first
    order = {path: (list(LAWS).index(one.law), list(ENGINES).index(one.engine)) for path, one in found.items()}
    config.stash[REPLAYED] = sorted(dict.fromkeys(named), key=lambda path: order.get(path, (len(LAWS), 0)))
    # where the command line names files of tests, the failures are those of the programs in them
    if named and config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = []  # on its way to a path, pytest imports the conftest.py and __init__.py of every folder
    if config.getoption("--platform") == "cpu":
        config.option.devices = max([config.option.devices, *map(devices_needed, found.values())])


def leave_replays(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sorts the regressions first; of a replay leaves the failures alone, with the programs of the tests named."""
    if config.stash[REPLAYED]:
        made = [getattr(getattr(item, "function", None), MADE_TEST, None) for item in items]
        known = [(one, held_by_a_module(one)) for one in dict.fromkeys(made) if isinstance(one, Program)]
        programs = [(one, Given("", held.module, held.qualname)) for one, held in known if held is not None]
        replayed = [item for item in items if isinstance(item, ReplayItem)]
        for item in replayed:
            item.programs = programs
        items[:] = replayed
    items.sort(key=lambda item: item.path.resolve() != REGRESSIONS.with_name("suite") / "test_regressions.py")
