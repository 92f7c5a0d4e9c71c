"""The options `--replay` and `--keep-regression`: what takes the place of a run's tests."""

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

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
from shardproof.properties.report.options import usage_errors
from shardproof.properties.report.session import MADE_TEST
from shardproof.properties.runner.given import Given
from shardproof.properties.runner.named import held_by_a_module
from shardproof.properties.runner.preconditions import NotAFailure
from shardproof.properties.runner.programs import Program

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
    """The folder for a regression; of a program beside the test file that is named, or the module that `--impl` names.

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
    found = dict(readable(named))
    config.stash[REPLAYED] = sorted(dict.fromkeys(named), key=lambda path: order_of(found.get(path)))
    if named and not named_files(config):  # where files are, the failures are those of the programs in them
        config.args = []  # on its way to a path, pytest imports the conftest.py and __init__.py of every folder
    if config.getoption("--platform") == "cpu":
        config.option.devices = max([config.option.devices, *map(devices_needed, found.values())])


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


def replay_files(session: pytest.Session) -> Iterator[ReplayFile]:
    """The collectors of the files that are replayed."""
    for path in session.config.stash[REPLAYED]:
        outside = session.config.rootpath not in path.parents  # pytest has no name for what is not below its root
        yield ReplayFile.from_parent(session, path=path, nodeid=path.as_posix() if outside else None)


def leave_replays(config: pytest.Config, items: list[pytest.Item]) -> None:
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
