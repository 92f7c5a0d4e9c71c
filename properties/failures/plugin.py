"""The pytest side of failures: what is shown and written when a law fails, and the replaying of what was."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest._code.code import ReprEntryNative, ReprExceptionInfo, ReprFileLocation, ReprTraceback, TerminalRepr
from _pytest._io import TerminalWriter

from properties.failures.files import replace, write
from properties.failures.lookup import NotAFailure, built_in, implementation_of
from properties.failures.replay import REGRESSIONS, ReplayFile, devices_needed, files, read
from properties.failures.text import coloured, render
from properties.laws.violation import LawViolation
from properties.report import FAILURE

PROPERTY = "shardproof headline"
REPLAYED = pytest.StashKey[frozenset[Path]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options for recorded failures."""
    group = parser.getgroup("shardproof", "shardproof: verification of distributed JAX")
    group.addoption(
        "--replay",
        action="append",
        default=[],
        metavar="FILE_OR_FOLDER",
        help="run only this recorded failure (.shardproof/failures/*.json), or a folder of them; may be repeated",
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
        recorded = read(path)
    except NotAFailure as error:
        raise pytest.UsageError(f"--keep-regression: {error}") from error
    if built_in(recorded.implementation) is None:
        raise pytest.UsageError(
            f"--keep-regression: {path}: {recorded.implementation.name!r} is not an implementation of this project: "
            "expected a failure of one, because every run must be able to repeat it"
        )
    target = REGRESSIONS / f"{path.stem}.json"
    known = target.exists()
    minimal = json.loads(path.read_text(encoding="utf-8"))
    replace(target, json.dumps(minimal, indent=1, sort_keys=True) + "\n")
    sys.stdout.write(f"{path} {'was there already: written again' if known else 'is now a regression'}: {target}\n")
    return int(pytest.ExitCode.OK)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Lets the replays take the place of all tests, with as many devices as they need."""
    config.stash[REPLAYED] = frozenset()
    given = config.getoption("--replay")
    if not given:
        return
    try:
        paths = [path.resolve() for name in given for path in files(Path(name))]
        recorded = [read(path) for path in paths]
        for one in recorded:
            implementation_of(one.implementation)
    except NotAFailure as error:
        raise pytest.UsageError(f"--replay: {error}") from error
    config.stash[REPLAYED] = frozenset(paths)
    config.args = [str(path) for path in paths]
    if getattr(config.option, "platform", "") == "cpu":
        config.option.devices = max([config.option.devices, *map(devices_needed, recorded)])


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A file that was given to `--replay` is a collector of one item."""
    if file_path.resolve() in parent.config.stash[REPLAYED]:
        outside = parent.config.rootpath not in file_path.parents  # pytest has no name for what is not below its root
        return ReplayFile.from_parent(parent, path=file_path, nodeid=file_path.as_posix() if outside else None)
    return None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The regressions run first."""
    items.sort(key=lambda item: item.path != REGRESSIONS.with_name("test_regressions.py"))


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
    report = yield
    found = list(violations_in(call.excinfo.value)) if call.excinfo is not None else []
    if not found or not report.failed:
        return report
    texts = []
    for violation in found:
        entry = {"headline": violation.headline, "text": ""}
        try:
            files = write(violation)
        except Exception as error:  # the failure is told even where it cannot be written down
            texts.append(f"{render(violation)}\n\n  no script: {type(error).__name__}: {error}")
        else:
            entry |= {"script": os.fspath(files.script), "json": os.fspath(files.case)}
            texts.append(render(violation))
        entry["text"] = texts[-1]
        item.stash[FAILURE] = entry
        named = [(f"shardproof {name}", value) for name, value in entry.items() if name != "text"]
        item.user_properties.extend(named)  # for JUnit XML, which has the text anyway
        report.user_properties.extend(named)
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    location = ReprFileLocation(os.fspath(item.path), item.location[1] or 0, found[0].headline + more)
    text = "\n\n".join(texts) + "\n"
    report.longrepr = ReprExceptionInfo(ReprTraceback([ReprEntryNative([text])], None, "native"), location)
    return report


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


class Colours:
    """Puts colour into the reports where they are shown: from a worker they come as plain text."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Replaces the plain text of a failed law by one that has colour."""
        if any(name == PROPERTY for name, _ in report.user_properties) and isinstance(
            report.longrepr, ReprExceptionInfo
        ):
            report.longrepr = ColouredText(report.longrepr)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Colours are for the process that has the terminal."""
    if not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(Colours(), "shardproof colours")
