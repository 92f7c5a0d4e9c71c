"""The results of a run: what every test counted, whether anything was checked at all, and the tables at the end."""

from pathlib import Path
from typing import Any

import pytest

from shardproof.properties.laws import LAWS
from shardproof.properties.report.accelerators import MEASURED, forgotten
from shardproof.properties.report.destinations import write_somewhere
from shardproof.properties.report.failures.causes import LEFT_OUT
from shardproof.properties.report.report import FAILURE, print_table, report_text
from shardproof.properties.report.session import COUNTED, GIVEN, GIVEN_TESTS, header, properties_of, reports_of
from shardproof.properties.runner.tally import Tally

OUTCOME = pytest.StashKey[str]()


def send_tallies(item: pytest.Item, report: Any) -> None:
    """Sends what a test counted along with its last report, which comes from whichever worker ran it."""
    counted = item.stash.get(COUNTED, []) if report.when == "teardown" else []
    if report.when == "call":
        item.stash[OUTCOME] = report.outcome
    for tally in counted:
        if item.stash.get(OUTCOME, "failed") == "failed" and len(counted) == 1:
            tally.outcome = "failed"
        tally.failure = item.stash.get(FAILURE, {}).get(tally.law, {})
    report.shardproof = [tally.to_json() for tally in counted]


def tallies_of(config: pytest.Config) -> list[Tally]:
    """What all tests counted, whichever process ran them."""
    return [Tally.from_json(record) for report in reports_of(config) for record in getattr(report, "shardproof", [])]


def require_results(session: pytest.Session) -> None:
    """Fails a run that did not do what was asked for."""
    if session.exitstatus == pytest.ExitCode.OK and unmet(session.config, tallies_of(session.config)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def unmet(config: pytest.Config, tallies: list[Tally]) -> list[str]:
    """What was asked for and not done, a sentence each that begins with the option."""
    told = [f"--require-{name}: no test that needs {name.upper()} devices was selected" for name in forgotten(config)]
    if must_check(config) and not tallies:
        names = ", ".join(str(one) for one in config.stash[GIVEN])
        told.append(f"--impl: nothing checked {names}: no law was collected from {GIVEN_TESTS}")
    return told + [
        f"--impl: no law that covers all cases held for {one}; the others do not apply"
        for one in inapplicable(config, tallies)
    ]


def must_check(config: pytest.Config) -> bool:
    """Whether laws are to be checked of given functions: beside `--replay` these are only what may be imported.

    A run that has measured them did what was asked for.
    """
    asked = bool(config.stash.get(GIVEN, [])) and not config.getoption("--replay") and not config.option.collectonly
    return asked and not properties_of(config, MEASURED)


def inapplicable(config: pytest.Config, tallies: list[Tally]) -> list[str]:
    """The given functions that a law was skipped for because it does not apply, and that nothing else held of."""
    skipped = {(t.contract, t.implementation) for t in tallies if t.outcome == "skipped"}
    verified = {(t.contract, t.implementation) for t in tallies if t.verifies and not LAWS[t.law].partial}
    return [str(one) for one in config.stash.get(GIVEN, []) if (one.contract.name, one.name) in skipped - verified]


def write_results(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints what was verified, and writes it where `--report` says."""
    config = terminalreporter.config
    tallies = tallies_of(config)
    for told in unmet(config, tallies):
        terminalreporter.write_line(f"ERROR: {told}", red=True)
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
