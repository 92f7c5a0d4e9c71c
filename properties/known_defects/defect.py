"""What a known defect is, and where it is."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from shardproof.properties.cases.case import Case
from shardproof.properties.engines import Engine

MOST = ("0.10.2", "0.12.0.1")
"""The versions on which most were seen."""


@dataclass(frozen=True)
class Defect:
    """A defect of JAX or XLA.

    Those with `at_fault` excuse a case on which they show, if all of these hold: the equation at fault is in the
    traced program, the version and the platform are theirs, and without the defect the law holds on this very case.
    """

    name: str  # also the name of its script
    sentence: str  # what is wrong
    # the JAX versions on which the script showed it; it is taken to be in those between them, and no others
    seen_on: tuple[str, ...] = MOST
    engine: str = ""  # `xla` where the interpreter does not have it; empty: it is in what JAX does while it traces
    platform: str = ""  # the platform whose compiler has it; empty: any
    # case and traced program to the primitive at fault, if it is in the program with the parameters that it takes
    at_fault: Callable[[Case, Any], Any] = lambda case, program: None
    # case and exception to whether this is how it shows, given that the program is at fault
    shows: Callable[[Case, Exception], bool] = lambda case, error: False
    # the cases on which it may end the process, which is then not risked where the program is at fault; None: no case
    aborts: Callable[[Case], bool] | None = None
    last_words: bytes = b""  # what it prints when it ends a process after all
    # as `at_fault`, of a program on which it showed, or a process ended with these words: it may take more for
    # the cause, since the compiler makes more of a program than was traced. Without it, what is `at_fault`.
    suspect: Callable[[Case, Any], Any] | None = None
    # given the primitive at fault, rids JAX or XLA of the defect for as long as it is entered; None: the
    # interpreter is without it
    repair: Callable[[Any], AbstractContextManager[None]] | None = None
    # whether the compiler must hold too, once repaired: where what is at fault need not show it
    confirmed: bool = False

    @property
    def script(self) -> Path:
        """The script in plain JAX that shows it."""
        return Path(__file__).with_name(f"{self.name}.py")

    def in_version(self, version: str) -> bool:
        """Whether a version of JAX is taken to have it: one on which its script showed it, or between two such."""
        versions = sorted(map(release, self.seen_on))
        return versions[0] <= release(version) <= versions[-1]

    def is_in(self, engine: Engine) -> bool:
        """Whether this version of JAX has it, on this engine and platform."""
        if not self.in_version(jax.__version__):
            return False
        if self.platform:
            return engine.name == "xla" and jax.default_backend() == self.platform
        return self.engine in ("", engine.name)


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version: those of `0.12.0.1.dev20260101+abc` are 0, 12, 0 and 1."""
    found = re.match(r"\d+(\.\d+)*", version)
    assert found, version
    numbers = [int(number) for number in found[0].split(".")]
    while numbers[-1:] == [0]:
        numbers.pop()
    return tuple(numbers)
