"""What is to be checked in a process of its own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shardproof.properties.cases.case import Case
from shardproof.properties.contracts import Scope
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.runner.violation import LawViolation
from shardproof.properties.runner.watching import BUSY_SECONDS


class Source(Protocol):
    """Where the implementation comes from: a name, which the child looks up as well."""

    def load(self) -> Implementation:
        """The implementation."""


@dataclass(frozen=True)
class Task:
    """What the child is to check, and how much of it: the cases that a law draws, or the one case that is given."""

    given: Source
    law: str
    engine: str
    scope: Scope
    max_examples: int
    random_seed: int | None
    platform: str
    busy_seconds: float = BUSY_SECONDS
    known: Mapping[str, str] = field(default_factory=dict)
    """Cases, as JSON, that are not to be run again, and the known defects that ended the process on them."""
    case: Case | None = None
    diagnose: Callable[[LawViolation], Sequence[str]] | None = None
    """Says in words what is wrong, in the process in which it went wrong."""
    precision: str | None = None
    """The precision of products that JAX is told in the child."""
