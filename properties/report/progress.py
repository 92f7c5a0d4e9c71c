"""The progress of a check, with the time left: a line that changes in a terminal, else a line now and then.

A run of pytest with workers has a bar of all tests in its terminal.
"""

import shutil
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, nullcontext
from datetime import timedelta
from typing import Any

import jax
import pytest

from shardproof.plugin import terminal
from shardproof.properties.cases.case import Case
from shardproof.properties.laws import Law
from shardproof.properties.runner.search import drawn_on

QUIET_SECONDS, TERMINAL_SECONDS = 5.0, 1.0
"""How often a line is written where there is no terminal, and in one; a shorter check writes none."""


def devices_note(devices: int) -> list[str]:
    """A line on how many devices XLA runs, where they are too few for most mistakes to show."""
    if devices >= 8:
        return []
    plural = "s" * (devices != 1)
    more = 'jax.config.update("jax_num_cpu_devices", 8), before JAX is first used, makes 8 virtual ones'
    advice = f": {more}" if jax.default_backend() == "cpu" else ""
    return [f"XLA ran on {devices} device{plural}{advice}; the interpreter on 8 and more"]


class Progress(ExitStack):
    """The engines of one check, one after the other."""

    def __init__(self, title: str, total: int, notes: list[str]) -> None:
        super().__init__()
        self.title, self.total, self.notes = title, total, notes
        self.done, self.line, self.violated = 0, title, False
        self.reporter, self.written = terminal(), False
        self.in_place = self.reporter is not None or sys.stderr.isatty()
        self.last_write = self.began = time.monotonic()
        self.structures = 0
        self.checked: dict[str, int] = {}  # on how many structures each law was checked, the first one first
        self.callback(self._erase)

    def engine(self, name: str, max_examples: int) -> None:
        """Begins the check on an engine, on as many structures as `drawn_on` says."""
        self.done += 1
        self.line, self.violated = f"{self.title}: on {name} ({self.done} of {self.total})", False
        self.structures, self.checked, self.began = drawn_on(name, max_examples), {}, time.monotonic()
        self._show(self.line)

    def case(self, law: Law, case: Case, breaks: bool) -> None:
        """Counts a case of a law, or reports that it breaks it: then the smallest one is sought, which may be long."""
        if self.violated:
            return
        if breaks:
            broken = f"{law.name} violated on mesh {case.mesh}"
            self.violated = self._show(f"{self.line}: {broken}; the smallest is sought", news=True)
            return
        self.checked[law.name] = self.checked.get(law.name, 0) + 1
        count, least = next(iter(self.checked.values())), min(self.checked, key=self.checked.__getitem__)
        if count < self.structures:
            seconds = (time.monotonic() - self.began) / count * (self.structures - count)
            far = f"{count} of {self.structures} structures, {timedelta(seconds=round(seconds))} left"
        else:
            far = f"{self.structures} structures; {least} applied to {self.checked[least]} so far, so more are drawn"
        self._show(f"{self.line}: {far}")

    def before(self, law: Law, case: Case) -> str:
        """Counts a case before it is checked, as `find_violation` calls it: no known defect ended a process on it."""
        self.case(law, case, False)
        return ""

    def _show(self, line: str, *, news: bool = False) -> bool:
        """Shows a line, unless another was written a moment ago; news need not wait for that."""
        quiet = TERMINAL_SECONDS if self.in_place else QUIET_SECONDS
        if time.monotonic() - self.last_write <= quiet and not (news and self.written):
            return False
        for note in self.notes:
            print(note, file=sys.stderr)
        self.notes = []
        self._write(line)
        self.last_write = time.monotonic()
        return True

    def _write(self, line: str) -> None:
        """Writes a line, in a terminal in place of the last one."""
        first, self.written = not self.written, True
        if not self.in_place:
            print(line, file=sys.stderr)
            return
        room = shutil.get_terminal_size().columns - 1
        line = f"\r{line[:room]:{room}}" if line else f"\r{'':{room}}\r"
        if self.reporter is None:
            print(line, end="", file=sys.stderr, flush=True)
            return
        capture = self.reporter.config.pluginmanager.get_plugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture is not None else nullcontext():
            if first:
                self.reporter.ensure_newline()
            self.reporter.write(line, flush=True)

    def _erase(self) -> None:
        if self.written and self.in_place:
            self._write("")


class RunProgress:
    """A bar of the whole run, with the time left, in place of pytest's dots: for workers that share a terminal."""

    def __init__(self, session: pytest.Session, reporter: pytest.TerminalReporter) -> None:
        self.session, self.reporter = session, reporter
        self.began = self.drawn = 0.0
        self.ended, self.failed, self.running = 0, 0, True

    def pytest_runtest_logstart(self) -> None:
        """Starts the clock with the first test: workers take seconds to import JAX."""
        self.began = self.began or time.monotonic()

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self) -> Generator[None, Any, Any]:
        """Has pytest write no letter for a test while the bar is there; its summary has words for all."""
        status = yield
        return (status[0], "", "") if status and self.running else status

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Draws the bar, at most ten times a second."""
        self.ended += report.when == "teardown"
        self.failed += report.failed
        if self.ended and time.monotonic() - self.drawn > 0.1:
            self.drawn, total = time.monotonic(), max(self.ended, self.session.testscollected)
            left = timedelta(seconds=round((self.drawn - self.began) / self.ended * (total - self.ended)))
            bar = "━" * (30 * self.ended // total)
            failed = f", {self.failed} failed" if self.failed else ""
            self.reporter.rewrite(f"{bar:30} {self.ended} of {total} tests{failed}, {left} left", erase=True)
            self.reporter.flush()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Erases the bar, since pytest prints its summary."""
        self.running = False
        self.reporter.rewrite("", erase=True)
        self.reporter.rewrite("")
