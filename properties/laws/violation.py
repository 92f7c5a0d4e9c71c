"""What a law raises when it does not hold."""

from dataclasses import dataclass

import numpy as np

from shardproof.oracles.dtypes import is_float, unit_roundoff, wide
from shardproof.oracles.layout import nan_equal
from shardproof.properties.cases import Case
from shardproof.properties.data import Data
from shardproof.properties.implementations import Implementation

ROUNDINGS = 16
"""By how many roundings of the largest value a difference may be taken for one of rounding."""


class NotRun(Exception):
    """An engine cannot run a case, or cannot tell what a law asks: a limit of the suite, and no verdict."""


class SuiteError(Exception):
    """An oracle or a law itself fails on a case: an error of this suite, and never the implementation's."""


class NotDifferentiable(NotImplementedError):
    """JAX has no derivative of a function in one of the modes."""


@dataclass(frozen=True)
class Difference:
    """Blocks that differ from the oracle's.

    Arguments:
        what: what the blocks are: a result, a tangent, a gradient.
        expected: the oracle's blocks `[*mesh.sizes, *block]`.
        actual: the implementation's, whose shape and dtype may be others.
        wrong: elementwise, where they differ; all of them where they cannot be compared.
        bound: elementwise, how far they may be from the right result before it was rounded (negative: or not finite,
            where a sum may overflow); None: they are equal bit for bit.
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

    @property
    def rounding(self) -> bool:
        """Whether it is no more than rounding may make it: in doubt it is not."""
        dtype = self.expected.dtype
        if not self.comparable or not is_float(dtype) or not self.wrong.any():
            return False
        actual, expected = (values.astype(wide(dtype)) for values in (self.actual, self.expected))
        with np.errstate(invalid="ignore", over="ignore"):
            off = np.abs(actual - expected)[self.wrong]
            scale = np.max(np.abs(expected), initial=0.0, where=np.isfinite(expected))
        return bool(np.all(off <= scale * min(ROUNDINGS * unit_roundoff(dtype), 1 / ROUNDINGS)))

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
    exception (`__cause__`) cannot travel, and `diagnosis`, what is wrong in words, once that is known.
    """

    engine: str = "xla"
    registered: str = ""
    origin: str = ""
    diagnosis: list[str] | None = None

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
    def rounding(self) -> bool:
        """Whether values differ by no more than rounding may make them."""
        return self.difference is not None and self.difference.rounding

    @property
    def headline(self) -> str:
        """Implementation, law, mesh, axis, and what is wrong, in one line."""
        return f"{self.implementation}: {self.law}: mesh {self.case.mesh}, axis {self.case.axis_name!r}: {self.finding}"

    def __str__(self) -> str:
        from shardproof.properties.failures.text import (
            render,  # the text is about violations, so it imports this module
        )

        return render(self)
