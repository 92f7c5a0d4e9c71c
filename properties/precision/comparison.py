"""When the blocks of an implementation equal those of the oracle."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from shardproof.oracles.dtypes import round_to, wide
from shardproof.oracles.layout import nan_equal
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data
from shardproof.properties.programs.violation import Broken, Difference, Kind, Of

VACUOUS = 0.125
"""A number of which nothing is known is taken so far by one step at each rounding, relative to its array's largest."""


def magnitude(array: np.ndarray) -> np.ndarray:
    """|x|, with zero in place of what is not finite: only finite sums have an error bound."""
    exact = np.abs(array.astype(wide(array.dtype)))
    return np.where(np.isfinite(exact), exact, 0)


def size_of(array: np.ndarray) -> np.ndarray:
    """|x| as doubles, of which the largest one stands for what is larger still."""
    return np.minimum(magnitude(array), np.finfo(np.float64).max).astype(np.float64)


class Judged(NamedTuple):
    """The judgement of runs in double precision and of samples on a result.

    Arguments:
        double: the result in double precision.
        bound: elementwise, how far an own result may be from the reference; negative: or not finite.
        leeway: elementwise, how far `double` may be from the reference; infinite where nothing is known.
        centre: what an own result must be near to, if that is not the reference.
        spread: elementwise, how far one step up or down at each rounding takes it; None: as far as `bound`.
    """

    double: np.ndarray
    bound: np.ndarray
    leeway: np.ndarray
    centre: np.ndarray | None = None
    spread: np.ndarray | None = None

    @classmethod
    def exactly(cls, double: np.ndarray, shape: tuple[int, ...]) -> "Judged":
        """The judgement of results that are compared bit for bit."""
        return cls(double, np.zeros(shape), np.zeros(shape))


@dataclass(eq=False)
class Reference:
    """A right result, before any rounding, and its bound: found when it is asked for.

    Arguments:
        exact: the oracle's result in a dtype that loses nothing that matters.
        dtype: the dtype that the result must have.
        judge: what says how far off; None: it is `exact`, rounded, bit for bit.
    """

    exact: np.ndarray
    dtype: np.dtype
    judge: Callable[[], Judged] | None = None

    @cached_property
    def judged(self) -> Judged | None:
        """The judgement; None if it is `exact`, bit for bit."""
        return self.judge and self.judge()

    @property
    def found(self) -> Judged | None:
        """The judgement, if anything but equality was asked of it so far."""
        return vars(self).get("judged")

    @property
    def centre(self) -> np.ndarray:
        """The number that a result must be near to: `exact`, or its own double where it is off by design."""
        return self.exact if self.found is None or self.found.centre is None else self.found.centre

    @property
    def rounded(self) -> np.ndarray:
        """The number of `dtype` that is nearest to `exact`; it is always right."""
        return round_to(self.exact, self.dtype)

    @property
    def is_exact(self) -> bool:
        """True if what is right is a number of `dtype`, so that nothing is lost where it is rounded."""
        with np.errstate(invalid="ignore"):
            return bool((self.rounded.astype(self.exact.dtype) == self.exact).all())

    @property
    def bound(self) -> np.ndarray | None:
        """Elementwise, how far a result may be from `centre`; negative where it may overflow; None: bit for bit."""
        if self.judged is None:
            return None
        by_design = self.centre is not self.exact and not nan_equal(self.centre, self.exact).all()
        return self.judged.bound if by_design or self.judged.bound.any() else None

    @property
    def off_in_doubles(self) -> np.ndarray | None:
        """Elementwise, whether the implementation is wrong in double precision: then no rounding explains a result."""
        if self.judged is None or self.judged.double.shape != self.exact.shape:
            return None
        double, leeway = self.judged.double, self.judged.leeway
        with np.errstate(invalid="ignore", over="ignore"):
            same = nan_equal(double, self.exact.astype(double.dtype))
            if self.exact.dtype == bool:
                return ~same & (leeway == 0)
            return ~((np.abs(double - self.exact) <= leeway) | same)

    @property
    def undecided(self) -> np.ndarray:
        """Elementwise, whether nothing is known: its roundings alone take it an eighth of the largest one away."""
        if self.found is None or self.exact.size == 0 or self.bound is None:
            return np.zeros(self.exact.shape, bool)
        spread = np.abs(self.bound) if self.found.spread is None else self.found.spread
        finite = np.where(np.isfinite(self.exact), self.exact, 0)
        largest = float(np.abs(finite).max(initial=0)) or 1.0
        return np.asarray((spread > VACUOUS * largest) & np.isfinite(self.exact))

    @property
    def tells(self) -> bool:
        """True if some result would be distinguished from a wrong one."""
        return self.exact.size == 0 or not self.undecided.all()


def compare(
    case: Case,
    data: Data,
    of: Of,
    what: str,
    *,
    actual: np.ndarray,
    right: Reference,
    view: Callable[[np.ndarray], np.ndarray] = np.asarray,
    leaf: int = 0,
) -> None:
    """Blocks agree: in shape, in dtype, and bit for bit, or as nearly as the reference says.

    Where its bound is negative, a sum may overflow on its way: what is not finite is right as well, but where the
    reference is infinite not the other infinity.

    Arguments:
        of: what the blocks are.
        what: the same in words.
        actual: the blocks.
        right: the reference, asked how far off they may be where they do not equal it, rounded.
        view: makes blocks of the reference's arrays, if they are none.
        leaf: which of the results, or operands, the blocks belong to.

    Raises:
        Broken: if they do not.
    """
    expected, sizes = view(right.rounded), case.mesh.sizes
    checks: tuple[tuple[Kind, str, Any, Any], ...] = (
        ("shape", "blocks of shape", actual.shape[len(sizes) :], expected.shape[len(sizes) :]),
        ("dtype", "dtype", actual.dtype, expected.dtype),
    )
    for kind, named, found, wanted in checks:
        if found != wanted:
            difference = Difference.between(of, what, expected, actual, leaf=leaf)
            raise Broken(kind, f"{what} has {named} {found}: expected {wanted}", data=data, difference=difference)
    same = nan_equal(actual, expected)
    bound = exact = off_in_doubles = None
    if not same.all() and right.bound is not None:
        bound, exact = view(right.bound), view(right.centre)
        with np.errstate(invalid="ignore", over="ignore"):
            reference = exact.astype(wide(expected.dtype))
            found = actual.astype(wide(actual.dtype))
            same |= (np.abs(found - reference) <= np.abs(bound)) | np.isinf(bound) & np.isnan(reference)
            same |= (bound < 0) & ~np.isfinite(found) & (np.isnan(found) | ~np.isinf(reference))
            same |= view(right.undecided) & np.isfinite(found)
        off = right.off_in_doubles
        off_in_doubles = None if off is None else view(off)
    if not same.all():
        wrong = ~same.reshape(*sizes, -1).all(axis=-1)
        count = f"{int(wrong.sum())} of {case.mesh.size} blocks wrong"
        finding = count if what == "result" else f"{what}: {count}"
        difference = Difference(of, what, expected, actual, ~same, bound, leaf, off_in_doubles, exact)
        raise Broken("values", finding, data=data, difference=difference)
