"""The results of a run: what every test counted, whether anything was checked at all, and the tables at the end."""

from pathlib import Path
from typing import Any

import pytest

from shardproof.properties.laws import LAWS
from shardproof.properties.report.destinations import write_somewhere
from shardproof.properties.report.failures.causes import LEFT_OUT
from shardproof.properties.report.report import FAILURE, print_table, report_text
from shardproof.properties.report.session import COUNTED, GIVEN, GIVEN_TESTS, TABLES, header
from shardproof.properties.runner.tally import Tally

TALLIES = pytest.StashKey[list[Tally]]()
OUTCOME = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Nothing is counted yet."""
    config.stash[TALLIES] = []
    config.pluginmanager.register(Collected(config), "shardproof results collected")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Sends what a test counted along with its last report, which comes from whichever worker ran it."""
    report = yield
    if call.when == "call":
        item.stash[OUTCOME] = report.outcome
    if call.when == "teardown" and COUNTED in item.stash:
        failures = item.stash.get(FAILURE, {})
        for counted in item.stash[COUNTED]:
            if item.stash.get(OUTCOME, "failed") == "failed" and len(item.stash[COUNTED]) == 1:
                counted.outcome = "failed"
            counted.failure = failures.get(counted.law, {})
        report.shardproof = [counted.to_json() for counted in item.stash[COUNTED]]
    return report


class Collected:
    """Keeps what tests counted, for `pytest_terminal_summary`."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keeps what a report brings along."""
        if hasattr(report, "shardproof"):
            self.config.stash[TALLIES] += map(Tally.from_json, report.shardproof)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run that was to check a given function and checked none is an error."""
    config = session.config
    if must_check(config) and not hasattr(config, "workerinput") and session.exitstatus == pytest.ExitCode.OK:
        if not config.stash[TALLIES]:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
        elif inapplicable(config):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def must_check(config: pytest.Config) -> bool:
    """Whether laws are to be checked of given functions: beside `--replay` these are only what may be imported.

    A run that has measured them did what was asked for.
    """
    given = config.stash.get(GIVEN, [])
    return (
        bool(given)
        and not config.stash.get(TABLES, [])
        and not config.option.collectonly
        and not config.getoption("--replay")
    )


def inapplicable(config: pytest.Config) -> list[str]:
    """The given functions that a law was skipped for because it does not apply, and that nothing else held of."""
    tallies: list[Tally] = config.stash[TALLIES]
    skipped = {(t.contract, t.implementation) for t in tallies if t.outcome == "skipped"}
    verified = {(t.contract, t.implementation) for t in tallies if t.verifies and not LAWS[t.law].partial}
    return [str(one) for one in config.stash.get(GIVEN, []) if (one.contract.name, one.name) in skipped - verified]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints what was verified, and writes it where `--report` says."""
    tallies = config.stash[TALLIES]
    if must_check(config) and not tallies:
        names = ", ".join(str(one) for one in config.stash[GIVEN])
        terminalreporter.write_line(
            f"ERROR: --impl: nothing checked {names}: no law was collected from {GIVEN_TESTS}", red=True
        )
    for name in inapplicable(config):
        told = f"ERROR: --impl: no law that covers all cases held for {name}; the others do not apply"
        terminalreporter.write_line(told, red=True)
    if tallies:
        given = GIVEN not in config.stash or bool(config.stash[GIVEN])  # without the options: programs
        print_table(tallies, terminalreporter, given=given)
    for line in left_out(terminalreporter):
        terminalreporter.write_line(line)
    for path in config.getoption("--report", default=[]):
        text = report_text(path, tallies, header(config))
        write_somewhere(Path(path), text, terminalreporter.write_line)


def left_out(terminalreporter: pytest.TerminalReporter) -> list[str]:
    """The laws that were left out since others had answered them, a line each, which pytest alone does not print."""
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", [])]
    reasons = [str(one[2]).removeprefix("Skipped: ") for one in skipped if isinstance(one, tuple)]  # of any plugin
    return [reason for reason in dict.fromkeys(reasons) if reason.startswith(LEFT_OUT)]
