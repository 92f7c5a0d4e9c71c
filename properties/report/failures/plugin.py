"""The pytest side of recorded failures: replaying them, and keeping them."""

import contextlib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardproof.properties.cases.reading import one_line
from shardproof.properties.engines import ENGINES
from shardproof.properties.laws.law import LAWS
from shardproof.properties.report.failures.files import replace
from shardproof.properties.report.failures.record import Recorded
from shardproof.properties.report.failures.replay import (
    OF_PROGRAMS,
    REGRESSIONS,
    ReplayFile,
    devices_needed,
    files,
    given_to,
    read,
    text_of,
)
from shardproof.properties.runner.given import GivenError
from shardproof.properties.runner.lookup import Lookup, built_in
from shardproof.properties.runner.named import NotAFailure, source_file

REPLAYED = pytest.StashKey[tuple[Path, ...]]()
IMPORTED = pytest.StashKey[list[str]]()
KEPT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options for recorded failures."""
    group = parser.getgroup("shardproof", "shardproof: verification of distributed JAX")
    group.addoption(
        "--replay",
        action="append",
        default=[],
        metavar="FILE_OR_FOLDER",
        help="run only this recorded failure (.shardproof/failures/*.json), or a folder of them; may be repeated. The "
        "function that it names is imported from below the working directory only; name another with --impl",
    )
    group.addoption(
        "--keep-regression",
        metavar="FILE",
        help="copy a recorded failure to where every run checks it first: properties/regressions/ for one of this "
        "project's own implementations, shardproof_regressions/ beside its module for one of a Program; runs no tests",
    )


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Keeps a regression, if that is what was asked for."""
    given = config.getoption("--keep-regression")
    if given is None:
        return None
    path = Path(given)
    try:
        recorded, text = read(path), text_of(path)
        name = recorded.implementation
        folder = source_file(name).parent / OF_PROGRAMS if name.program else REGRESSIONS
    except NotAFailure as error:
        raise pytest.UsageError(f"--keep-regression: {error}") from error
    told = one_line(str(path))
    if not name.program and built_in(name) is None:
        raise pytest.UsageError(
            f"--keep-regression: {told}: {name.name!r} is not an implementation of this project: expected a failure of "
            "one, or of a Program that a module holds, because every run must be able to repeat it"
        )
    if not KEPT_NAME.fullmatch(path.stem):
        raise pytest.UsageError(
            f"--keep-regression: {told}: expected a name of letters, digits, '-', '_' and '.', at most 200 of them"
        )
    target = folder / f"{path.stem}.json"
    known = target.exists()
    replace(target, json.dumps(json.loads(text), indent=1, sort_keys=True) + "\n")
    sys.stdout.write(f"{path} {'was there already: written again' if known else 'is now a regression'}: {target}\n")
    return int(pytest.ExitCode.OK)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Lets the replays take the place of all tests, with as many devices as they need."""
    config.stash[REPLAYED], config.stash[IMPORTED] = (), []
    given = config.getoption("--replay")
    if not given:
        return
    try:
        paths = list(dict.fromkeys(path.resolve() for name in given for path in files(Path(name))))
        functions = given_to(config)
    except NotAFailure as error:
        raise pytest.UsageError(f"--replay: {error}") from error
    except GivenError as error:  # which begins with the option that it is about
        raise pytest.UsageError(str(error)) from error
    found = dict(readable(paths))
    recorded = list(found.values())
    paths.sort(key=lambda path: order_of(found.get(path)))
    config.stash[IMPORTED] = imports(Lookup(one.implementation, functions) for one in recorded)
    config.stash[REPLAYED] = tuple(paths)
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


def imports(lookups: Iterable[Lookup]) -> list[str]:
    """What the replays import, once each, with the file that it comes from; what is refused fails when it is run."""
    found = {}
    for lookup in lookups:
        with contextlib.suppress(NotAFailure):
            found[f"{lookup.name.module}:{lookup.name.qualname}"] = lookup.source()
    return [f"replay imports {name} from {one_line(str(path))}" for name, path in found.items() if path is not None]


def pytest_report_header(config: pytest.Config) -> list[str]:
    """The functions that are imported because a file names them."""
    return config.stash[IMPORTED]


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
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The regressions run first."""
    items.sort(key=lambda item: item.path.resolve() != REGRESSIONS.with_name("suite") / "test_regressions.py")
