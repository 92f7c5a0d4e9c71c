"""What a check is doing, and the time left: a bar on a terminal, a line in pytest's, else one now and then."""

import sys
import time
from contextlib import ExitStack, nullcontext
from datetime import timedelta

import jax
from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from shardproof.plugin import terminal
from shardproof.properties.cases.case import Case
from shardproof.properties.laws import Law

QUIET_SECONDS, TERMINAL_SECONDS = 5.0, 1.0
"""How often a line is written where there is no terminal, and in pytest's; a check that takes less says nothing."""


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
        self.done = 0
        self.line, self.violated = title, False
        self.console = Console(file=sys.stderr, soft_wrap=True, highlight=False, markup=False)
        self.told = time.monotonic()
        self.first: Law | None = None
        self.bar: Bar | None = None
        self.structures, self.asked, self.began = 0, 0, self.told
        self.more: dict[str, int] = {}  # of how many structures each law was asked
        self.reporter, self.written = terminal(), False
        if self.reporter is not None:
            self.callback(self._erase)
        elif self.console.is_terminal:
            self._say_notes()
            columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(24)
            self.bar = self.enter_context(Bar(*columns, TimeRemainingColumn(), console=self.console, transient=True))
            self.task = self.bar.add_task(title, total=None)

    def engine(self, name: str, structures: int) -> None:
        """The laws are about to be asked of so many structures on an engine."""
        self.done += 1
        self.line, self.violated, self.first = f"{self.title}: on {name} ({self.done} of {self.total})", False, None
        self.structures, self.asked, self.more, self.began = structures, 0, {}, time.monotonic()
        if self.bar is not None:
            self.bar.reset(self.task, total=structures)
        self._say(self.line)

    def case(self, law: Law, case: Case, breaks: bool) -> None:
        """A law is asked of a case, or is broken: of what breaks it then, the smallest is sought, which may be long."""
        if breaks and not self.violated:
            broken = f"{law.name} violated on mesh {case.mesh}"
            self.violated = self._say(f"{self.line}: {broken}; the smallest is sought", news=True)
        elif not self.violated:
            self.first = self.first or law
            self.asked = min(self.asked + (law is self.first), self.structures)
            self.more[law.name] = self.more.get(law.name, 0) + 1
            if self.bar is not None:
                self.bar.advance(self.task, float(law is self.first))
            else:
                self._say(f"{self.line}: {self.far}")

    def before(self, law: Law, case: Case) -> str:
        """A law is about to be asked of a case; nothing speaks against it."""
        self.case(law, case, False)
        return ""

    @property
    def far(self) -> str:
        """How far the first law has come; once it has been asked of all, the one that was asked of the fewest."""
        if self.asked < self.structures:
            return f"{self.asked} of {self.structures} structures, {self.left} left"
        name = min(self.more, key=self.more.__getitem__)
        return f"{self.structures} structures, and more for those that {name} lacks: it was asked of {self.more[name]}"

    @property
    def left(self) -> timedelta:
        """About how long the engine takes for the structures that are left."""
        each = (time.monotonic() - self.began) / max(1, self.asked)
        return timedelta(seconds=round(each * max(0, self.structures - self.asked)))

    def _say(self, line: str, *, news: bool = False) -> bool:
        quiet = QUIET_SECONDS if self.reporter is None else TERMINAL_SECONDS
        if news and self.written:  # where something was said, what is new need not wait
            quiet = 0.0
        if self.bar is not None:
            self.bar.update(self.task, description=line)
        elif time.monotonic() - self.told > quiet:
            self._say_notes()
            self._write(line)
            self.told = time.monotonic()
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

    def _say_notes(self) -> None:
        for note in self.notes:
            self.console.print(note)
        self.notes = []
