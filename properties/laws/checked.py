"""The verdict of a law that held: on how many data sets, and what is worth telling of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardproof.properties.cases.case import Case
from shardproof.properties.programs.violation import NotRun


class Checked(int):
    """The number of data sets that were checked.

    Attributes:
        undecided: how many numbers in them were held to nothing.
        findings: what is worth knowing and breaks no law.
        sent: what the case sends, and what that was compared with.
    """

    undecided: int = 0
    findings: Sequence[str] = ()
    sent: Mapping[str, Any] | None = None

    def saying(
        self, *, undecided: int = 0, findings: Sequence[str] = (), sent: Mapping[str, Any] | None = None
    ) -> "Checked":
        """The number with something to tell."""
        self.undecided, self.findings, self.sent = undecided, findings, sent
        return self


def checked_sets(told: Sequence[bool], case: Case, undecided: int, findings: Sequence[str] = ()) -> Checked:
    """The number of data sets that tell right from wrong, given which do.

    Raises:
        NotRun: if none does.
    """
    if not any(told):
        names = ", ".join(dict.fromkeys(operand.dtype for operand in case.operands))
        raise NotRun(f"no data set tells right from wrong: roundings leave no certain digit in {names}")
    return Checked(sum(told)).saying(undecided=undecided, findings=findings)
