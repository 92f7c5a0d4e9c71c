"""The progress of a check, with the time left: a bar on a terminal, a line in pytest's, else a line now and then.

A run of pytest with workers has a bar of all tests in its terminal.
"""

import sys
import time
import warnings
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import jax
import pytest
from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from shardproof.plugin import terminal
from shardproof.properties.cases.case import Case
from shardproof.properties.laws import Law
from shardproof.properties.runner.profiles import drawn_on

QUIET_SECONDS, TERMINAL_SECONDS = 5.0, 1.0
"""How often a line is written where there is no terminal, and in pytest's; a shorter check writes none."""


def devices_note() -> list[str]:
    """A line on how many devices XLA runs, where they are too few for most mistakes to show."""
    devices = len(jax.devices())
    if devices >= 8:
        return []
    plural = "s" * (devices != 1)
    more = 'jax.config.update("jax_num_cpu_devices", 8), before JAX is first used, makes 8 virtual ones'
    advice = f": {more}" if jax.default_backend() == "cpu" else ""
    return [f"XLA ran on {devices} device{plural}{advice}; the interpreter on 8 and more"]


@contextmanager
def warn_once() -> Generator[None]:
    """Shows each warning once: a function that is traced for every case gives the same one hundreds of times.

    Python's own filter "once" shows it again after any `catch_warnings`, of which Hypothesis has many.
    """
    with warnings.catch_warnings():
        show, shown = warnings.showwarning, set[str]()

        def show_first(message: Warning | str, *where: Any, **more: Any) -> None:
            if str(message) not in shown:
                shown.add(str(message))
                show(message, *where, **more)

        warnings.showwarning = show_first
        yield


class Progress(ExitStack):
    """The engines of one check, one after the other."""

    def __init__(self, title: str, total: int, notes: list[str]) -> None:
        super().__init__()
        self.title, self.total, self.notes = title, total, notes
        self.done, self.line, self.violated = 0, title, False
        self.console = Console(file=sys.stderr, soft_wrap=True, highlight=False, markup=False)
        self.last_write = self.began = time.monotonic()
        self.structures = 0
        self.checked: dict[str, int] = {}  # on how many structures each law was checked, the first one first
        self.bar: Bar | None = None
        self.reporter, self.written = terminal(), False
        if self.reporter is not None:
            self.callback(self._erase)
        elif self.console.is_terminal:
            self._write_notes()
            columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(24)
            self.bar = self.enter_context(Bar(*columns, TimeRemainingColumn(), console=self.console, transient=True))
            self.task = self.bar.add_task(title, total=None)

    def engine(self, name: str, max_examples: int) -> None:
        """Begins the check on an engine, on as many structures as `drawn_on` says."""
        self.done += 1
        self.line, self.violated = f"{self.title}: on {name} ({self.done} of {self.total})", False
        self.structures, self.checked, self.began = drawn_on(name, max_examples), {}, time.monotonic()
        if self.bar is not None:
            self.bar.reset(self.task, total=self.structures)
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
        first = next(iter(self.checked))
        if self.bar is not None:
            self.bar.advance(self.task, float(law.name == first))
            return
        count = self.checked[first]
        if count < self.structures:
            seconds = (time.monotonic() - self.began) / count * (self.structures - count)
            far = f"{count} of {self.structures} structures, {timedelta(seconds=round(seconds))} left"
        else:
            far = f"{count} structures; more are drawn for laws that applied to fewer"
        self._show(f"{self.line}: {far}")

    def before(self, law: Law, case: Case) -> str:
        """Counts a case before it is checked, as `find_violation` calls it: no known defect ended a process on it."""
        self.case(law, case, False)
        return ""

    def _show(self, line: str, *, news: bool = False) -> bool:
        """Shows a line, unless another was written a moment ago; news need not wait for that."""
        quiet = QUIET_SECONDS if self.reporter is None else TERMINAL_SECONDS
        if self.bar is not None:
            self.bar.update(self.task, description=line)
        elif time.monotonic() - self.last_write > quiet or (news and self.written):
            self._write_notes()
            self._write(line)
            self.last_write = time.monotonic()
        else:
            return False
        return True

    def _write(self, line: str, *, erase: bool = True) -> None:
        first, self.written = not self.written, True
        if self.reporter is None:
            self.console.print(line)
            return
        capture = self.reporter.config.pluginmanager.get_plugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture is not None else nullcontext():
            if first:
                self.reporter.ensure_newline()
            self.reporter.rewrite(line[: self.console.width - 1], erase=erase)
            self.reporter.flush()

    def _erase(self) -> None:
        if self.written:
            self._write("")
            self._write("", erase=False)

    def _write_notes(self) -> None:
        for note in self.notes:
            self.console.print(note)
        self.notes = []


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
