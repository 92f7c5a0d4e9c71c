"""What a check is doing, on standard error: a bar with the time left on a terminal, a line now and then elsewhere."""

import sys
import time
from contextlib import ExitStack

import jax
from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from shardproof.properties.cases.case import Case
from shardproof.properties.laws import Law

QUIET_SECONDS = 5.0
"""How often a line is written where there is no terminal; a check that takes less says nothing."""


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
        if self.console.is_terminal:
            self._say_notes()
            columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(24)
            self.bar = self.enter_context(Bar(*columns, TimeRemainingColumn(), console=self.console, transient=True))
            self.task = self.bar.add_task(title, total=None)

    def engine(self, name: str, structures: int) -> None:
        """The laws are about to be asked of so many structures on an engine."""
        self.done += 1
        self.line, self.violated, self.first = f"{self.title}: on {name} ({self.done} of {self.total})", False, None
        if self.bar is not None:
            self.bar.reset(self.task, total=structures)
        self._say(self.line)

    def case(self, law: Law, case: Case, breaks: bool) -> None:
        """A law is asked of a case, or is broken: of what breaks it then, the smallest is sought, which may be long."""
        if breaks and not self.violated:
            broken = f"{law.name} violated on mesh {case.mesh}"
            self.violated = self._say(f"{self.line}: {broken}; the smallest is sought")
        elif self.bar is not None and not self.violated:
            self.first = self.first or law
            self.bar.advance(self.task, float(law is self.first))

    def _say(self, line: str) -> bool:
        if self.bar is not None:
            self.bar.update(self.task, description=line)
        elif time.monotonic() - self.told > QUIET_SECONDS:
            self._say_notes()
            self.console.print(line)
            self.told = time.monotonic()
        else:
            return False
        return True

    def _say_notes(self) -> None:
        for note in self.notes:
            self.console.print(note)
        self.notes = []
