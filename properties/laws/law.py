"""A law: a sentence, the implementations and cases that it applies to, and the check that it holds."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardproof.properties.cases.case import Case
from shardproof.properties.engines import Engine
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import Undecided

Check = Callable[[Implementation, Case, Engine], int]
"""Returns how many data sets were checked. Raises Broken if the law does not hold, NotRun if that cannot be decided,
NotImplementedError if the implementation does not support the case, and WrongResult if its result has another tree,
shape or dtype than it should."""

LARGE = 16
"""The most devices of a mesh that is not large."""


def whole_case(case: Case) -> Case | None:
    """A valid case, with the chain around its call."""
    return None if case.forbidden else dataclasses.replace(case, out=None)


def without_chain(case: Case) -> Case | None:
    """A valid case that has no chain around its call."""
    return None if case.forbidden or case.chain else dataclasses.replace(case, out=None)


@dataclass(frozen=True)
class Law:
    """One thing that must hold."""

    name: str
    sentence: str  # what holds
    check: Check
    # the part of a drawn case that is checked, such as the call without its chain; of that part, itself. None: none
    of: Callable[[Case], Case | None] = whole_case
    concerns: Callable[[Implementation, str], bool] = lambda implementation, engine: True  # on one of its `engines`
    engines: tuple[str, ...] = ("simulate", "xla")  # the engines that can decide it
    check_simulated: Check | None = None  # the interpreter's part of a law that compares engines
    derives: bool = False  # whether it differentiates
    partial: bool = False  # whether an implementation may support none of the cases that it applies to
    # the implementations for which it counts as held even if no engine can run a case
    optional: Callable[[Implementation], bool] = lambda implementation: False
    stands_alone: bool = False  # whether its scripts need no shardproof: they have the oracle's values or gradients

    def applies_to(self, implementation: Implementation, engine: str) -> bool:
        """True if an engine can check it of an implementation."""
        return engine in self.engines and self.concerns(implementation, engine)

    @property
    def between_engines(self) -> bool:
        """True if it compares engines with one another, and not with an oracle."""
        return self.check_simulated is not None


class Checked(int):
    """The number of data sets that were checked."""

    undecided: int = 0  # how many numbers in them were compared with nothing
    findings: Sequence[str] = ()  # remarks that break no law
    sent: Mapping[str, Any] | None = None  # what the case sends, and what that was compared with
    choices: Mapping[str, Mapping[str, bool]] = {}  # of each choice that its line makes, which sides were taken
    refused: Mapping[str, bool] | None = None  # of each result, whether a predicate of results refused it once changed

    def __new__(cls, count: int, **more: Any) -> "Checked":  # noqa: PYI034 # beartype refuses Self in a method
        """The number, with attributes."""
        checked = super().__new__(cls, count)
        vars(checked).update(more)
        return checked


def checked_sets(decided: Sequence[bool], case: Case, **more: Any) -> Checked:
    """The number of data sets that distinguish right from wrong, given which do; raises Undecided if none does.

    Arguments:
        more: attributes of `Checked`.
    """
    if not any(decided):
        names = ", ".join(dict.fromkeys(operand.dtype for operand in case.operands))
        raise Undecided(f"no data set tells right from wrong: roundings leave no certain digit in {names}")
    return Checked(sum(decided), **more)
