"""What a law raises when it does not hold."""

from dataclasses import dataclass

import numpy as np

from oracles.layout import nan_equal
from properties.cases import Case
from properties.data import Data
from properties.implementations import Implementation


class Gap(Exception):
    """An implementation says, or JAX says of it, that it does not serve a case: reported, but not as wrong."""


@dataclass(frozen=True)
class Difference:
    """Blocks that differ from the oracle's.

    Arguments:
        what: what the blocks are: a result, a tangent, a gradient.
        expected: the oracle's blocks `[*mesh.sizes, *block]`.
        actual: the implementation's, whose shape and dtype may be others.
        wrong: elementwise, where they differ; all of them where they cannot be compared.
        bound: elementwise, how far they may differ; None: not at all.
    """

    what: str
    expected: np.ndarray
    actual: np.ndarray
    wrong: np.ndarray
    bound: np.ndarray | None = None

    @property
    def comparable(self) -> bool:
        """Whether shape and dtype are right, so that elements can be compared."""
        return self.actual.shape == self.expected.shape and self.actual.dtype == self.expected.dtype

    @classmethod
    def between(cls, what: str, expected: np.ndarray, actual: np.ndarray) -> "Difference":
        """The difference of blocks that must be equal bit for bit."""
        same = nan_equal(actual, expected) if actual.shape == expected.shape else np.zeros(expected.shape, bool)
        return cls(what, expected, actual, ~same)


class LawViolation(AssertionError):
    """An implementation breaks a law on a case.

    Arguments:
        implementation: the implementation.
        law: the law, and the transformation around the call where there is one.
        case: the case.
        finding: what is wrong, in a few words.
        data: the data set on which it shows, if it depends on one.
        difference: the blocks that are wrong, where blocks were compared.

    What passes it on fills in `engine`, the name of the engine that ran it, `registered`, the name under
    which the law is registered, and `origin`, the text of the implementation's own traceback where the
    exception (`__cause__`) cannot travel.
    """

    engine: str = "xla"
    registered: str = ""
    origin: str = ""

    def __init__(
        self,
        implementation: Implementation,
        law: str,
        case: Case,
        finding: str,
        *,
        data: Data | None = None,
        difference: Difference | None = None,
    ) -> None:
        self.implementation = implementation
        self.law = law
        self.case = case
        self.finding = finding
        self.data = data
        self.difference = difference
        super().__init__(self.headline)

    @property
    def headline(self) -> str:
        """Implementation, law, mesh, axis, and what is wrong, in one line."""
        return f"{self.implementation}: {self.law}: mesh {self.case.mesh}, axis {self.case.axis_name!r}: {self.finding}"

    def __str__(self) -> str:
        from properties.failures.text import render  # the text is about violations, so it imports this module

        return render(self)
