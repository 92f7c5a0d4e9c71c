"""The options `--replay` and `--keep-regression`: a recorded failure runs again, by pytest or from its script."""

import contextlib
import dataclasses
import json
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import pytest

from shardproof.properties.cases.reading import one_line
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import ENGINES, engine_named
from shardproof.properties.laws import LAWS
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import matmul_precision
from shardproof.properties.programs.violation import DEATHS
from shardproof.properties.report.failures.files import Recorded, parse, replace
from shardproof.properties.report.failures.text import diagnosed, render
from shardproof.properties.report.options import usage_errors
from shardproof.properties.report.session import MADE_TEST
from shardproof.properties.runner.child import Source, Task
from shardproof.properties.runner.given import SAID, Given, parse_all
from shardproof.properties.runner.isolation import check_isolated
from shardproof.properties.runner.judging import judge
from shardproof.properties.runner.named import BuiltIn, Named, held_by_a_module
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
        options={"jax_default_matmul_precision": matmul_precision()},
        case=recorded.case.to_json(),
        diagnose=diagnosed,
    )
    found = check_isolated(task)
    if found.violation is not None:
        raise found.violation
    if not found.tally.structures:
        left_out = "; ".join(found.tally.left_out())
        raise HeldOnNothing(f"{recorded.name}: {recorded.law}: not checked: {left_out}")


def loaded(source: Source, contract: str = "") -> Implementation:
    """The function that is replayed, of this contract, or a line on why there is none.

    Raises:
        NotAFailure: if it cannot be imported, or is of another.
    """
    try:
        found = source.load()
    except GivenError as error:
        raise NotAFailure(one_line(str(error))) from error
    if contract not in ("", found.contract.name):
        raise NotAFailure(f"{source} is a {found.contract.name}: expected a {contract}")
    return found


def source_of(recorded: Recorded, given: Sequence[Given], programs: Iterable[tuple[Program, Given]] = ()) -> Source:
    """Where the function comes from that a failure is replayed with.

    Raises:
        NotAFailure: if none of them is of the contract of the recorded case, and it is no built-in one.
    """
    contract = recorded.case.contract.name
    for one in given:
        if contract == (one.contract or loaded(one).contract.name):
            return one
    beside = [(program, one) for program, one in programs if program.name == contract]
    if beside:
        return next((one for _, one in beside if one.function == recorded.program), beside[0][1])
    if recorded.built_in:
        return BuiltIn(contract, recorded.name)
    if recorded.listed:
        raise NotAFailure(f"{contract}[{one_line(recorded.name)}]: expected --impl {contract}=MODULE:FUNCTION as well")
    raise NotAFailure(f"{contract}: expected --impl MODULE:PROGRAM, or the file with its program_test, as well")


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
        contract = recorded.case.contract.name
        source: Source = BuiltIn(contract, recorded.name)
        if function is not None:  # by the name that the script has for it, another process imports it from there
            name = next(name for name, value in vars(sys.modules["__main__"]).items() if value is function)
            of = "" if isinstance(function, Program) else f"{contract}="
            claimed = (said.get(each) or None for each in ("communication", "claims", "overlap"))
            source = Given.parse(f"{of}__main__:{name}", *claimed)
        repeat(recorded, source, dataclasses.replace(loaded(source, contract), name=recorded.name))
    except LawViolation as violation:
        sys.stdout.write(f"{render(violation)}\n")
        return 1
    except Exception as error:
        told = isinstance(error, NotAFailure | HeldOnNothing | GivenError)
        sys.stderr.write(f"{error}\n" if told else traceback.format_exc())
        return 2
    return 0


class ReplayItem(pytest.Item):
    """One recorded failure."""

    programs: Sequence[tuple[Program, Given]] = ()

    def runtest(self) -> None:
        """Runs the check; a case that was not checked is no pass."""
        option = self.config.getoption
        try:
            recorded = read(self.path)
            source = source_of(recorded, given_to(self.config), self.programs)
            run_isolated(recorded, source, devices=option("devices"), platform=option("platform"))
        except NotAFailure as error:
            told = one_line(str(self.path))
            refused = str(error) if str(error).startswith(told) else f"{told}: {error}"
            raise pytest.fail.Exception(refused, pytrace=False) from None

    def reportinfo(self) -> tuple[Path, None, str]:
        """The file, which is what this item is named after."""
        return self.path, None, f"replay of {one_line(self.path.name)}"


class ReplayFile(pytest.File):
    """A file given to `--replay`."""

    def collect(self) -> Iterator[ReplayItem]:
        """Its one failure, or what is wrong with the file."""
        yield ReplayItem.from_parent(self, name=one_line(self.path.stem))


REPLAYED = pytest.StashKey[list[Path]]()


def keep_regression(config: pytest.Config) -> int | None:
    """Keeps a regression, if that is what was asked for; gives the exit code then."""
    given = config.getoption("--keep-regression")
    if given is None:
        return None
    path = Path(given)
    with usage_errors("--keep-regression: "):
        recorded, text = read(path), text_of(path)
        folder = folder_of(config, recorded)
    target = folder / f"{path.stem}.json"
    known = target.exists()
    replace(target, json.dumps(json.loads(text), indent=1, sort_keys=True) + "\n")
    sys.stdout.write(f"{path} {'was there already: written again' if known else 'is now a regression'}: {target}\n")
    return int(pytest.ExitCode.OK)


def folder_of(config: pytest.Config, recorded: Recorded) -> Path:
    """The folder for a regression; of a program beside the test file that is named, or the module of `--impl`.

    Raises:
        NotAFailure: if neither is, or the failure is of this project's own implementation and this is no checkout.
    """
    if recorded.built_in:
        if not REGRESSIONS.is_dir():
            raise NotAFailure(f"{recorded.name!r} is this project's own: expected a checkout of shardproof")
        return REGRESSIONS
    beside = [Path(name.partition("::")[0]) for name in config.args if named_files(config)]
    for one in given_to(config):
        program = None if one.contract else one.load().program
        held = held_by_a_module(program) if program is not None else None
        beside += [held.path] if held is not None and held.path is not None else []
    if recorded.listed or not beside or not beside[0].is_file():
        raise NotAFailure(
            f"{recorded.name!r} is not an implementation of this project: expected a failure of one, or of a Program "
            "whose test file, or --impl MODULE:PROGRAM, is named as well"
        )
    return beside[0].resolve().parent / OF_PROGRAMS


def named_files(config: pytest.Config) -> bool:
    """Whether the command line names files of tests."""
    return config.args_source is pytest.Config.ArgsSource.ARGS


def choose_failures(config: pytest.Config) -> None:
    """Lets the failures of `--replay` take the place of all tests, with as many devices as they need."""
    with usage_errors("--replay: "):
        named = [path.resolve() for name in config.getoption("--replay") for path in files(Path(name))]
    found: dict[Path, Recorded] = {}
    for path in named:
        with contextlib.suppress(NotAFailure):  # what is refused fails when it is run, after all others
            found[path] = read(path)
    # as in a run, values come first
    order = {path: (list(LAWS).index(one.law), list(ENGINES).index(one.engine)) for path, one in found.items()}
    config.stash[REPLAYED] = sorted(dict.fromkeys(named), key=lambda path: order.get(path, (len(LAWS), 0)))
    if named and not named_files(config):  # where files are, the failures are those of the programs in them
        config.args = []  # on its way to a path, pytest imports the conftest.py and __init__.py of every folder
    if config.getoption("--platform") == "cpu":
        config.option.devices = max([config.option.devices, *map(devices_needed, found.values())])


def leave_replays(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The regressions run first; of a replay nothing else runs, and the programs of the tests named are at hand."""
    if config.stash[REPLAYED]:
        made = [getattr(getattr(item, "function", None), MADE_TEST, None) for item in items]
        known = [(one, held_by_a_module(one)) for one in dict.fromkeys(made) if isinstance(one, Program)]
        programs = [(one, Given("", held.module, held.qualname)) for one, held in known if held is not None]
        items[:] = [item for item in items if isinstance(item, ReplayItem)]
        for item in items:
            item.programs = programs  # type: ignore[attr-defined]
    items.sort(key=lambda item: item.path.resolve() != REGRESSIONS.with_name("suite") / "test_regressions.py")
