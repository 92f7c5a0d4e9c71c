"""The exceptions of laws: data, of which the text, the picture and the script are made later."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from shardproof.oracles.dtypes import is_float, unit_roundoff, wide
from shardproof.oracles.layout import nan_equal
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data

ROUNDINGS = 16
"""The roundings of the largest value that a difference of rounding has at most."""

Of = Literal["result", "tangent", "gradient", "replica", "array"]
"""The thing that is wrong: an array is what `out_specs` puts together, a replica what must equal another one."""

Kind = Literal[
    "values", "shape", "dtype", "tree",  # of a result
    "adjoint",  # forward and reverse mode contradict each other
    "type", "replicas", "out_specs",  # a result's type, replicas that differ, what `out_specs` is accepted for
    "accepted", "message",  # a forbidden argument is accepted, or refused without a reason
    "communication", "overlap",  # what is sent, and beside what
    "raises", "deadlock",  # an exception; devices would wait for one another for ever
    "unwritten", "order",  # a result depends on memory that was never written, or on the order of updates
    "aborts", "ended", "unfinished", "memory",  # a process aborts, did so before on this case, does not end, takes all
]  # fmt: skip
"""The ways to be wrong."""

RAISED: tuple[Kind, ...] = ("raises", "deadlock", "unwritten", "order")
"""The kinds for which something was raised in the implementation's own code, or because of it."""

DEATHS: tuple[Kind, ...] = ("aborts", "ended", "unfinished", "memory")
"""The kinds for which the process that ran the case did not survive it."""


class NotRun(Exception):
    """An engine cannot run a case, or not decide a law: a limit of the suite, and no verdict."""

    final = False  # whether no other engine could decide it
    sent: Mapping[str, Any] | None = None  # what a program sends, where no expectation or bound is known


class Undecided(NotRun):
    """Roundings leave no certain digit on any data set of a case."""

    final = True


class NothingToCompare(NotRun):
    """It is known what a program sends, and no expectation or bound is."""

    final = True
    TEXT = "no expectation or lower bound: nothing to compare communication with"

    def __init__(self, sent: Mapping[str, Any]) -> None:
        self.sent = sent
        super().__init__(self.TEXT)


class SuiteError(Exception):
    """An oracle or a law itself fails on a case: an error of this suite, and never the implementation's."""

    law: str = ""  # the name of the law that was checked


class NotDifferentiable(NotImplementedError):
    """JAX has no derivative of a function in one of the modes."""


@dataclass(frozen=True)
class Difference:
    """Blocks that differ from the oracle's."""

    of: Of
    what: str  # the same in words: `gradient (reverse mode) of lhs`
    expected: np.ndarray  # the oracle's blocks `[*mesh.sizes, *block]`
    actual: np.ndarray  # the implementation's, whose shape and dtype may be others
    wrong: np.ndarray  # elementwise, where they differ; all of them where they cannot be compared
    # elementwise, how far they may be from the right result before it was rounded (negative: or not finite, where a sum
    # may overflow); None: they must be equal bit for bit
    bound: np.ndarray | None = None
    leaf: int = 0  # which of the results it is, of a gradient which of the operands
    off_in_doubles: np.ndarray | None = None  # elementwise, whether it is wrong in doubles as well; None: unknown
    exact: np.ndarray | None = None  # the oracle's blocks before they were rounded; None: unknown

    @property
    def comparable(self) -> bool:
        """True if shape and dtype are right, so that elements can be compared."""
        return self.actual.shape == self.expected.shape and self.actual.dtype == self.expected.dtype

    def in_doubles(self, case: Case) -> bool:
        """True if it shows in double precision alone, below what rounding to the case's own dtypes may do."""
        return self.comparable and self.expected.dtype == np.float64 and not case.is_wide

    @property
    def by_formula(self) -> bool:
        """True if an element is wrong in double precision as well, so that no rounding explains it."""
        return self.off_in_doubles is not None and bool((self.off_in_doubles & self.wrong).any())

    @property
    def rounding(self) -> bool:
        """True if it is no more than rounding may make it: in doubt it is not."""
        dtype = self.expected.dtype
        if not self.comparable or not is_float(dtype) or not self.wrong.any() or self.by_formula:
            return False
        actual, expected = (values.astype(wide(dtype)) for values in (self.actual, self.expected))
        with np.errstate(invalid="ignore", over="ignore"):
            off = np.abs(actual - expected)[self.wrong]
            scale = np.max(np.abs(expected), initial=0.0, where=np.isfinite(expected))
        return bool(np.all(off <= scale * min(ROUNDINGS * unit_roundoff(dtype), 1 / ROUNDINGS)))

    @classmethod
    def between(cls, of: Of, what: str, expected: np.ndarray, actual: np.ndarray, *, leaf: int = 0) -> "Difference":
        """The difference of blocks that must be equal bit for bit."""
        same = nan_equal(actual, expected) if actual.shape == expected.shape else np.zeros(expected.shape, bool)
        return cls(of, what, expected, actual, ~same, leaf=leaf)


class Broken(AssertionError):
    """A law does not hold of a case.

    `finding` says in a few words what is wrong; `data` is the data set on which it shows, if it depends on one, and
    `difference` has the blocks that are wrong, where blocks were compared.
    """

    def __init__(
        self,
        kind: Kind,
        finding: str,
        *,
        of: Of = "result",
        data: Data | None = None,
        difference: Difference | None = None,
    ) -> None:
        self.kind, self.finding, self.data, self.difference = kind, finding, data, difference
        self.of: Of = of if difference is None else difference.of
        super().__init__(kind, finding)  # what unpickling it takes: the rest travels as its attributes

    def __str__(self) -> str:
        return self.finding

    @property
    def of_derivative(self) -> bool:
        """True if a derivative is wrong."""
        return self.of in ("tangent", "gradient")
