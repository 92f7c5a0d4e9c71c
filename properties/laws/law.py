"""What a law is: a sentence, which implementations and cases it is asked of, what breaks it, what it tells."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardproof.properties.cases.case import Case
from shardproof.properties.engines import Engine
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import Undecided

Check = Callable[[Implementation, Case, Engine], int]

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
    """One thing that must hold.

    Arguments:
        name: what reports call it.
        sentence: what holds.
        check: raises if it does not hold; returns how many data sets were checked.
        of: what of a drawn case it is asked of, such as the call without its chain; None where it does not apply. Of
            what it gives it gives the same.
        concerns: whether it has anything to ask of an implementation, on one of its engines.
        engines: those that can say whether it holds.
        alone: of a law that compares engines, what checks the interpreter's part.
        derives: whether it differentiates.
        partial: whether an implementation may support none of the cases that it applies to.
        optional: of which implementations it holds even if no engine can run a case.
        stands_alone: whether its scripts need no shardproof: they compare values or gradients with those of an oracle.
    """

    name: str
    sentence: str
    check: Check
    of: Callable[[Case], Case | None] = whole_case
    concerns: Callable[[Implementation, str], bool] = lambda implementation, engine: True
    engines: tuple[str, ...] = ("simulate", "xla")
    alone: Check | None = None
    derives: bool = False
    partial: bool = False
    optional: Callable[[Implementation], bool] = lambda implementation: False
    stands_alone: bool = False

    def asks(self, implementation: Implementation, engine: str) -> bool:
        """True if it has anything to ask of an implementation on an engine."""
        return engine in self.engines and self.concerns(implementation, engine)

    @property
    def between_engines(self) -> bool:
        """True if it compares engines with one another, so that what is wrong is not known from an oracle."""
        return self.alone is not None


class Checked(int):
    """The number of data sets that were checked.

    Attributes:
        undecided: how many numbers in them were held to nothing.
        findings: what is worth knowing and breaks no law.
        sent: what the case sends, and what that was compared with.
        refused: of each result that was changed, whether a predicate of results refused it then.
    """

    undecided: int = 0
    findings: Sequence[str] = ()
    sent: Mapping[str, Any] | None = None
    refused: Mapping[str, bool] | None = None

    def saying(
        self, *, undecided: int = 0, findings: Sequence[str] = (), sent: Mapping[str, Any] | None = None
    ) -> "Checked":
        """The number with something to tell."""
        self.undecided, self.findings, self.sent = undecided, findings, sent
        return self


def checked_sets(told: Sequence[bool], case: Case, undecided: int, findings: Sequence[str] = ()) -> Checked:
    """The number of data sets that tell right from wrong, given which do; raises Undecided if none does."""
    if not any(told):
        names = ", ".join(dict.fromkeys(operand.dtype for operand in case.operands))
        raise Undecided(f"no data set tells right from wrong: roundings leave no certain digit in {names}")
    return Checked(sum(told)).saying(undecided=undecided, findings=findings)
