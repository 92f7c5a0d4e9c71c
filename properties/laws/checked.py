"""The verdict of a law that held: on how many data sets, and how many numbers it held to nothing."""

from collections.abc import Sequence

from shardproof.properties.cases.case import Case
from shardproof.properties.programs.violation import NotRun


class Checked(int):
    """The number of data sets that were checked, and of `undecided` numbers in them, which were held to nothing."""

    undecided: int = 0

    def __add__(self, other: int) -> "Checked":
        """The numbers of several laws."""
        return _checked(int(self) + int(other), self.undecided + getattr(other, "undecided", 0))


def _checked(sets: int, undecided: int) -> Checked:
    made = Checked(sets)
    made.undecided = undecided
    return made


def checked_sets(told: Sequence[bool], case: Case, undecided: int) -> Checked:
    """The number of data sets that tell right from wrong, given which do.

    Raises:
        NotRun: if none does.
    """
    if not any(told):
        names = ", ".join(dict.fromkeys(operand.dtype for operand in case.operands))
        raise NotRun(f"no data set tells right from wrong: roundings leave no certain digit in {names}")
    return _checked(sum(told), undecided)
