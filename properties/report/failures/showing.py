"""Shows failures in pytest: their own text in place of a traceback, in colour, and once for each cause."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from shardproof.plugin import own
from shardproof.properties.report.failures.causes import by_cause, group_text
from shardproof.properties.report.failures.evidence import evidence
from shardproof.properties.report.failures.text import colour, report
from shardproof.properties.report.report import FAILURE
from shardproof.properties.runner.violation import LawViolation

FAILED = pytest.StashKey[list[Any]]()
"""The reports of all failures, while pytest has one for each cause."""


def violations_in(error: BaseException | None) -> Iterator[LawViolation]:
    """The violations in an exception, or in a group of them."""
    if isinstance(error, LawViolation):
        yield error
    elif isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from violations_in(part)


def show_violations(item: pytest.Item, call: pytest.CallInfo[None], made: Any) -> None:
    """Writes the script and the case of a failed law, and shows its text in place of a traceback."""
    found = list(violations_in(call.excinfo.value)) if call.excinfo is not None else []
    if call.excinfo is None or not found or not made.failed:
        return
    entries = [report(violation) for violation in found]
    item.stash[FAILURE] = {one.law.name: entry for one, entry in zip(found, entries, strict=True)}
    if own(item.config, "report"):
        for one, entry in zip(found, entries, strict=True):
            item.stash[FAILURE][one.law.name] = {**entry, "evidence": evidence(one)}
    # sent along, as the report is, where another process has the terminal
    made.shardproof_failures = entries
    named = [(f"shardproof {name}", one[name]) for one in entries for name in one if name != "text"]
    item.user_properties.extend(named)  # for JUnit XML, which has the text anyway
    made.user_properties.extend(named)
    text = AssertionError("\n\n".join(map(group_text, by_cause(entries))) + "\n")
    shown = pytest.ExceptionInfo.from_exception(text.with_traceback(call.excinfo.tb)).getrepr(style="value")
    if shown.reprcrash is not None:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        shown.reprcrash.message = found[0].headline + more
        shown.reprcrash.path, shown.reprcrash.lineno = os.fspath(item.path), item.location[1] or 0
    made.longrepr = shown


@dataclass
class Text:
    """The text of a failure, coloured where the terminal is; `reprcrash` has its place and headline."""

    text: str
    reprcrash: object

    def __str__(self) -> str:
        return self.text

    def toterminal(self, writer: Any) -> None:
        """Writes the text."""
        writer.line(colour(self.text) if writer.hasmarkup else self.text)
        writer.line()


def once_per_cause(reports: list[Any]) -> list[Any]:
    """The first report of each cause, with a line for each other violation of it; other failures as they are."""
    entries = [
        {**entry, "number": number}
        for number, one in enumerate(reports)
        for entry in getattr(one, "shardproof_failures", [{"cause": one.nodeid}])
    ]
    texts: dict[int, list[str]] = {}
    for group in by_cause(entries):
        texts.setdefault(group[0]["number"], []).extend([group_text(group)] if "text" in group[0] else [])
    for number, some in texts.items():
        if some:
            reports[number].longrepr = Text("\n\n".join(some) + "\n", reports[number].longrepr.reprcrash)
    return [reports[number] for number in texts]


def show_causes(config: pytest.Config, exitstatus: int) -> None:
    """Has pytest print one failure for each cause."""
    terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
    printed = exitstatus != pytest.ExitCode.INTERNAL_ERROR and not config.getoption("no_summary")
    if printed and terminal.stats.get("failed"):
        config.stash[FAILED] = terminal.stats["failed"]
        terminal.stats["failed"] = once_per_cause(config.stash[FAILED])


def restore_failures(terminalreporter: pytest.TerminalReporter) -> None:
    """Gives pytest all failures back, which it lists and counts after it has printed them."""
    if FAILED in terminalreporter.config.stash:
        terminalreporter.stats["failed"] = terminalreporter.config.stash[FAILED]
