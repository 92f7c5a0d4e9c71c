"""Tests that need an accelerator: skipped elsewhere, failed where that was forbidden, and never run beside others.

`@pytest.mark.tpu` and `@pytest.mark.gpu` are for what measures time: on virtual devices of a CPU that says nothing of
either, and what other workers do meanwhile is in every number.
"""

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from shardproof.properties.report.session import TABLES

ACCELERATORS = ("tpu", "gpu")
MEASURED, NEEDS = "shardproof measured", "shardproof needs"
"""The properties of a test's report that hold a table, as text, and the accelerator that the test needs."""

RAN = pytest.StashKey[set[str]]()
"""The accelerators of whose tests one was run, skipped or failed."""

WIDTH = 160


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of what is measured."""
    group = parser.getgroup("shardproof", "shardproof: verification of distributed JAX")
    for name in ACCELERATORS:
        group.addoption(
            f"--require-{name}",
            action="store_true",
            help=f"tests that need {name.upper()} devices fail where there are none, where otherwise they are skipped",
        )
    group.addoption(
        "--profile",
        metavar="DIR",
        help="write JAX profiler traces of the rows that tests for accelerators measure to DIR/CONTRACT/FORM",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Nothing is measured yet."""
    config.stash[TABLES], config.stash[RAN] = [], set()
    config.pluginmanager.register(Tables(config), "shardproof accelerators tables")
    folder = config.getoption("--profile")
    if folder is not None and Path(folder).exists() and not Path(folder).is_dir():
        raise pytest.UsageError(f"--profile={folder}: expected a folder, this is a file")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test whose devices are not there, unless they are required."""
    for name in ACCELERATORS:
        if item.get_closest_marker(name):
            item.user_properties.append((NEEDS, name))
            required = item.config.getoption(f"--require-{name}")
            if not required and (reason := missing(name, item.config)):
                pytest.skip(reason)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Fails a test whose devices are required, and not there."""
    for name in ACCELERATORS:
        if item.get_closest_marker(name) and (reason := missing(name, item.config)):
            pytest.fail(f"--require-{name}: {reason}", pytrace=False)


def missing(name: str, config: pytest.Config) -> str:
    """Why nothing can be measured on an accelerator in this run, as a sentence; empty if it can."""
    platform, devices = config.getoption("--platform"), config.getoption("--devices")
    kind, workers = name.upper(), workers_of(config)
    if platform != name:
        return (
            f"this test measures time on {kind} devices, and this run is on {devices} {platform} devices: expected "
            f"pytest -m {name} --platform {name} --devices N, on a machine with N {kind} devices"
        )
    if devices < 2:
        return f"this test measures what {kind} devices send to one another: expected --devices of 2 or more"
    if workers > 1:
        return f"this test measures time, which {workers} workers at once would change: expected a run with -n 0"
    return ""


def workers_of(config: pytest.Config) -> int:
    """How many processes run tests at once."""
    told = getattr(config, "workerinput", None)
    return int(told["workercount"]) if told is not None else 1


@pytest.fixture
def record_table(record_property: Callable[[str, object], None]) -> Callable[[RenderableType], None]:
    """Takes a table that is printed at the end of the run."""

    def record(table: RenderableType) -> None:
        console = Console(file=io.StringIO(), width=WIDTH, force_terminal=False)
        console.print(table)
        record_property(MEASURED, console.file.getvalue())  # type: ignore[attr-defined]

    return record


class Tables:
    """Keeps what tests measured, whichever process ran them."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Takes the tables of a test that is over."""
        if report.when == "teardown":
            self.config.stash[TABLES] += [str(text) for name, text in report.user_properties if name == MEASURED]
            self.config.stash[RAN].update(str(needed) for name, needed in report.user_properties if name == NEEDS)


def forgotten(config: pytest.Config) -> list[str]:
    """The accelerators that were required, and for which no test was selected."""
    if config.option.collectonly or hasattr(config, "workerinput"):
        return []
    return [n for n in ACCELERATORS if config.getoption(f"--require-{n}") and n not in config.stash[RAN]]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run that was to measure something and had no test for it is no success."""
    if forgotten(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints the tables."""
    for name in forgotten(config):
        told = f"ERROR: --require-{name}: no test that needs {name.upper()} devices was selected"
        terminalreporter.write_line(told, red=True)
    if config.stash[TABLES]:
        terminalreporter.section("what was measured", sep="=")
        for text in config.stash[TABLES]:
            terminalreporter.write_line(text)
