"""The pytest side of recorded failures: replaying them, and keeping them."""

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardproof.properties.engines import ENGINES
from shardproof.properties.laws import LAWS
from shardproof.properties.report.failures.files import replace
from shardproof.properties.report.failures.record import Recorded
from shardproof.properties.report.failures.replay import (
    OF_PROGRAMS,
    REGRESSIONS,
    ReplayFile,
    ReplayItem,
    devices_needed,
    files,
    given_to,
    read,
    text_of,
)
from shardproof.properties.report.session import MADE_TEST
from shardproof.properties.runner.given import Given, GivenError
from shardproof.properties.runner.named import NotAFailure, held_by_a_module
from shardproof.properties.runner.programs import Program

REPLAYED = pytest.StashKey[tuple[Path, ...]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options for recorded failures."""
    group = parser.getgroup("shardproof", "shardproof: verification of distributed JAX")
    group.addoption(
        "--replay",
        action="append",
        default=[],
        metavar="FILE_OR_FOLDER",
        help="run only this recorded failure (.shardproof/failures/*.json), or a folder of them; may be repeated. The "
        "function is named with --impl, or its program_test's file is; one of this project's own needs neither",
    )
    group.addoption(
        "--keep-regression",
        metavar="FILE",
        help="copy a recorded failure to where every run checks it first: properties/regressions/ for one of this "
        "project's own implementations, shardproof_regressions/ beside the test file, or the module of --impl, that is "
        "named as well for one of a Program; runs no tests",
    )


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Keeps a regression, if that is what was asked for."""
    given = config.getoption("--keep-regression")
    if given is None:
        return None
    path = Path(given)
    try:
        recorded, text = read(path), text_of(path)
        folder = REGRESSIONS if recorded.built_in else folder_of_program(config, recorded)
    except (NotAFailure, GivenError) as error:
        raise pytest.UsageError(f"--keep-regression: {error}") from error
    target = folder / f"{path.stem}.json"
    known = target.exists()
    replace(target, json.dumps(json.loads(text), indent=1, sort_keys=True) + "\n")
    sys.stdout.write(f"{path} {'was there already: written again' if known else 'is now a regression'}: {target}\n")
    return int(pytest.ExitCode.OK)


def folder_of_program(config: pytest.Config, recorded: Recorded) -> Path:
    """The folder for regressions of a program: beside the test file that is named, or the module that `--impl` names.

    Raises:
        NotAFailure: if neither is.
    """
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


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Lets the replays take the place of all tests, with as many devices as they need."""
    config.stash[REPLAYED] = ()
    given = config.getoption("--replay")
    if not given:
        return
    try:
        paths = list(dict.fromkeys(path.resolve() for name in given for path in files(Path(name))))
        given_to(config)
    except NotAFailure as error:
        raise pytest.UsageError(f"--replay: {error}") from error
    except GivenError as error:  # which begins with the option that it is about
        raise pytest.UsageError(str(error)) from error
    found = dict(readable(paths))
    recorded = list(found.values())
    paths.sort(key=lambda path: order_of(found.get(path)))
    config.stash[REPLAYED] = tuple(paths)
    if not named_files(config):  # where files are, the failures are those of the programs in them
        config.args = []  # on its way to a path, pytest imports the conftest.py and __init__.py of every folder
    if getattr(config.option, "platform", "") == "cpu":
        config.option.devices = max([config.option.devices, *map(devices_needed, recorded)])


def readable(paths: Iterable[Path]) -> Iterator[tuple[Path, Recorded]]:
    """The failures in files; what is refused fails when it is run."""
    for path in paths:
        with contextlib.suppress(NotAFailure):
            yield path, read(path)


def order_of(recorded: Recorded | None) -> tuple[int, int]:
    """The place of a failure among those of a folder: as in a run, values come first; what is refused comes last."""
    if recorded is None:
        return len(LAWS), 0
    return list(LAWS).index(recorded.law), list(ENGINES).index(recorded.engine)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Any:
    """The session itself has the files that were given to `--replay`, so nothing that lies beside one is imported."""
    made = yield
    if isinstance(collector, pytest.Session):
        made.result = [*made.result, *(replay_file(collector, path) for path in collector.config.stash[REPLAYED])]
    return made


def replay_file(session: pytest.Session, path: Path) -> ReplayFile:
    """The collector of a file."""
    outside = session.config.rootpath not in path.parents  # pytest has no name for what is not below its root
    return ReplayFile.from_parent(session, path=path, nodeid=path.as_posix() if outside else None)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The regressions run first; of a replay nothing else runs, and the programs of the tests named are at hand."""
    if config.stash[REPLAYED]:
        programs = list(programs_of(items))
        items[:] = [item for item in items if isinstance(item, ReplayItem)]
        for item in items:
            item.programs = programs  # type: ignore[attr-defined]
    items.sort(key=lambda item: item.path.resolve() != REGRESSIONS.with_name("suite") / "test_regressions.py")


def programs_of(items: Iterable[pytest.Item]) -> Iterator[tuple[Program, Given]]:
    """The programs of tests that `program_test` made, and how each is imported."""
    found = [getattr(getattr(item, "function", None), MADE_TEST, None) for item in items]
    for program in dict.fromkeys(one for one in found if isinstance(one, Program)):
        held = held_by_a_module(program)
        if held is not None:
            yield program, Given("", held.module, held.qualname)
