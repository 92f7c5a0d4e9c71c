"""What a check is doing, on standard error: a line that changes on a terminal, a line now and then elsewhere."""

import sys
import time
from contextlib import ExitStack

import jax
from rich.console import Console
from rich.status import Status

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
        self.status: Status | None = None
        if self.console.is_terminal:
            self._say_notes()
            self.status = self.enter_context(Status("", console=self.console))

    def engine(self, name: str) -> None:
        """The laws are about to be asked on an engine."""
        self.done += 1
        self.line, self.violated = f"{self.title}: on {name} ({self.done} of {self.total})", False
        self._say(self.line)

    def violation(self, law: Law, case: Case) -> None:
        """A law is broken; of what breaks it then, the smallest is sought, which may take minutes."""
        if not self.violated:
            broken = f"{law.name} violated on mesh {case.mesh}"
            self.violated = self._say(f"{self.line}: {broken}; the smallest is sought")

    def _say(self, line: str) -> bool:
        if self.status is not None:
            self.status.update(line)
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
