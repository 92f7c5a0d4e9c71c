"""What pytest shows of failures: their own text in place of a traceback, in colour, and once for each cause."""

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from _pytest._code.code import ReprEntryNative, ReprExceptionInfo, ReprFileLocation, ReprTraceback, TerminalRepr
from _pytest._io import TerminalWriter

from shardproof.properties.report.failures.causes import by_cause, others
from shardproof.properties.report.failures.text import coloured, report
from shardproof.properties.report.report import FAILURE
from shardproof.properties.runner.violation import LawViolation

HEADLINE = "headline"
PROPERTY = f"shardproof {HEADLINE}"


def pytest_configure(config: pytest.Config) -> None:
    """Colours and causes are for the process that has the terminal."""
    if not hasattr(config, "workerinput"):
        shown = Shown()
        config.pluginmanager.register(shown, "shardproof failures shown")
        config.pluginmanager.register(AllCounted(shown), "shardproof failures counted")


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
    item.stash[FAILURE] = {one.law.name: entry for one, entry in zip(found, entries, strict=True)}
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
    """The reports that tell a cause first, with a line for each other violation of it; other failures as they are."""
    entries: list[dict[str, str]] = []
    for number, one in enumerate(reports):
        own = [(name.removeprefix("shardproof "), str(value)) for name, value in one.user_properties]
        starts = [i for i, (name, _) in enumerate(own) if name == HEADLINE] or [0]
        for start, end in pairwise([*starts, len(own)]):
            entries.append({"cause": one.nodeid, "number": str(number), **dict(own[start:end])})
    shown: dict[int, pytest.TestReport] = {}
    for group in by_cause(entries):
        first = reports[int(group[0]["number"])]
        shown[int(group[0]["number"])] = first
        if isinstance(first.longrepr, ColouredText):
            elsewhere = [group[0], *(one for one in group[1:] if one["number"] != group[0]["number"])]
            first.longrepr.text = "\n".join([first.longrepr.text.rstrip(), *others(elsewhere), ""])
    return [*shown.values()]


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
