"""The pytest side of failures: what is shown and written when a law fails, and the replaying of what was."""

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest._code.code import ReprEntryNative, ReprExceptionInfo, ReprFileLocation, ReprTraceback, TerminalRepr
from _pytest._io import TerminalWriter

from shardproof.properties.cases.reading import one_line
from shardproof.properties.engines import ENGINES
from shardproof.properties.laws.law import LAWS
from shardproof.properties.reports.failures.causes import by_cause, others
from shardproof.properties.reports.failures.files import replace
from shardproof.properties.reports.failures.record import Recorded
from shardproof.properties.reports.failures.replay import (
    REGRESSIONS,
    ReplayFile,
    devices_needed,
    files,
    given_to,
    read,
    text_of,
)
from shardproof.properties.reports.failures.text import coloured, report
from shardproof.properties.reports.report import FAILURE
from shardproof.properties.runner.given import GivenError
from shardproof.properties.runner.lookup import Lookup, NotAFailure, built_in
from shardproof.properties.runner.violation import LawViolation

PROPERTY = "shardproof headline"
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
        help="copy a recorded failure to properties/regressions/, which every run checks first; runs no tests",
    )


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Keeps a regression, if that is what was asked for."""
    given = config.getoption("--keep-regression")
    if given is None:
        return None
    path = Path(given)
    try:
        recorded, text = read(path), text_of(path)
    except NotAFailure as error:
        raise pytest.UsageError(f"--keep-regression: {error}") from error
    told = one_line(str(path))
    if built_in(recorded.implementation) is None:
        raise pytest.UsageError(
            f"--keep-regression: {told}: {recorded.implementation.name!r} is not an implementation of this project: "
            "expected a failure of one, because every run must be able to repeat it"
        )
    if not KEPT_NAME.fullmatch(path.stem):
        raise pytest.UsageError(
            f"--keep-regression: {told}: expected a name of letters, digits, '-', '_' and '.', at most 200 of them"
        )
    target = REGRESSIONS / f"{path.stem}.json"
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


def violations_in(error: BaseException | None) -> Iterator[LawViolation]:
    """The violations that an exception is or holds: Hypothesis groups several."""
    if isinstance(error, LawViolation):
        yield error
    elif isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from violations_in(part)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Writes the script and the case of a failed law, and shows its text in place of a traceback."""
    made = yield
    found = list(violations_in(call.excinfo.value)) if call.excinfo is not None else []
    if not found or not made.failed:
        return made
    entries = [report(violation) for violation in found]
    item.stash[FAILURE] = entries[0]
    for one in entries:
        named = [(f"shardproof {name}", value) for name, value in one.items() if name != "text"]
        item.user_properties.extend(named)  # for JUnit XML, which has the text anyway
        made.user_properties.extend(named)
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    location = ReprFileLocation(os.fspath(item.path), item.location[1] or 0, found[0].headline + more)
    text = "\n\n".join(one["text"] for one in entries) + "\n"
    made.longrepr = ReprExceptionInfo(ReprTraceback([ReprEntryNative([text])], None, "native"), location)
    return made


class ColouredText(TerminalRepr):
    """The text of a failure, with colour where the terminal has it."""

    def __init__(self, plain: ReprExceptionInfo) -> None:
        self.reprtraceback = plain.reprtraceback
        self.reprcrash = plain.reprcrash
        self.text = str(plain)

    def __str__(self) -> str:
        return self.text

    def toterminal(self, tw: TerminalWriter) -> None:
        """Writes the text."""
        tw.line(coloured(self.text) if tw.hasmarkup else self.text)
        tw.line()


def once_per_cause(reports: Sequence[pytest.TestReport]) -> list[pytest.TestReport]:
    """The first report of each cause, with a line for each of the others; other failures stay as they are."""
    known: dict[int, pytest.TestReport] = {}
    entries = []
    for number, one in enumerate(reports):
        told = {name.removeprefix("shardproof "): str(value) for name, value in one.user_properties}
        known[number] = one
        entries.append({"cause": one.nodeid, "number": str(number), **told})
    shown = []
    for group in by_cause(entries):
        first = known[int(group[0]["number"])]
        if isinstance(first.longrepr, ColouredText):
            first.longrepr.text = "\n".join([first.longrepr.text.rstrip(), *others(group), ""])
        shown.append(first)
    return shown


class Shown:
    """What the process that has the terminal does with the reports: from a worker they come as plain text."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Replaces the plain text of a failed law by one that has colour."""
        if any(name == PROPERTY for name, _ in report.user_properties) and isinstance(
            report.longrepr, ReprExceptionInfo
        ):
            report.longrepr = ColouredText(report.longrepr)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
        """While pytest prints the failures, there is one for each cause."""
        self.failed = terminalreporter.stats.get("failed", [])
        if self.failed:
            terminalreporter.stats["failed"] = once_per_cause(self.failed)
        return (yield)


class AllCounted:
    """Once they are printed, all failures count again."""

    def __init__(self, shown: Shown) -> None:
        self.shown = shown

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Gives pytest back what it lists and counts."""
        if self.shown.failed:
            terminalreporter.stats["failed"] = self.shown.failed


def pytest_sessionstart(session: pytest.Session) -> None:
    """Colours and causes are for the process that has the terminal."""
    if not hasattr(session.config, "workerinput"):
        shown = Shown()
        session.config.pluginmanager.register(shown, "shardproof failures shown")
        session.config.pluginmanager.register(AllCounted(shown), "shardproof failures counted")
