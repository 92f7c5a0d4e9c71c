"""Of a few cases one of each kind, before any kind comes again."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import reject
from hypothesis import strategies as st

from shardproof.properties.cases.case import Case
from shardproof.properties.laws.kinds import Kinds

PATIENCE = 30
"""A kind that does not come in so many draws is not waited for any more: a function may not be asked for it."""


@dataclass
class Turns:
    """Whose turn it is.

    Arguments:
        kinds: the kinds of cases.
        taken: how many cases of each were taken.
        passed: how many cases were passed over since.
        missing: the kinds that are not waited for.
    """

    kinds: Kinds
    taken: Counter[str] = field(default_factory=Counter)
    passed: int = 0
    missing: frozenset[str] = frozenset()

    def take(self, case: Case) -> bool:
        """Whether a case is taken: none of a kind of which more were taken than of another one."""
        kind = self.kinds.of(case)
        behind = {k for k in self.kinds.every(case) - self.missing if self.taken[k] < self.taken[kind]}
        if behind and self.passed < PATIENCE:
            self.passed += 1
            return False
        self.missing = (self.missing | behind) - {kind}
        self.taken[kind] += 1
        self.passed = 0
        return True


@st.composite
def in_turn(draw: st.DrawFn, cases: st.SearchStrategy[Case], turns: Turns, broken: Callable[[], bool]) -> Case:
    """The cases, of all kinds in turn until one is `broken`: from then on all are drawn, to find a simpler one."""
    case = draw(cases)
    if not broken() and not turns.take(case):
        reject()  # a filter would draw again, and what it drew before would be a part of what Hypothesis saves
    return case
