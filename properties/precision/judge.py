"""Bounds of a case's results around what is right before any rounding.

Two questions. *Mathematics*: in double precision the implementation equals the reference. *Roundings*: in its own
dtypes it is as near to that as samples are in which each result is rounded at random, up or down, to steps that are
`COARSE` times as wide as its dtype's. Where every operation is exact no sample differs, and results are compared bit
for bit.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from shardproof.oracles.dtypes import (
    flush_error,
    half_spacing,
    is_float,
    largest_finite,
    real_of,
    round_to,
    smallest_normal,
    wide,
)
from shardproof.oracles.layout import nan_equal
from shardproof.properties.cases.case import Case, Placement
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts.numbers import MOST_FACTORS, is_moved
from shardproof.properties.engines import Sets
from shardproof.properties.engines.engine import MODES, all_blocks, placed_blocks
from shardproof.properties.engines.simulate import InterpreterLimit
from shardproof.properties.precision.arithmetic import EndlessLoop
from shardproof.properties.precision.comparison import Judged, Reference, compare, magnitude, size_of
from shardproof.properties.precision.compiled import in_doubles
from shardproof.properties.precision.formats import COARSE, LARGER, Charges
from shardproof.properties.precision.runs import SAMPLES, Runs
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.transformations import nearby_blocks, reference_blocks
from shardproof.properties.programs.violation import Of

FACTOR = 2.0
"""A result may be off by this factor times the largest deviation of `SAMPLES` samples; of half as many twice that."""

ANY_FINITE = float(np.finfo(np.float64).max) / 4
"""The bound of a result of which nothing is known, but that it is finite."""

DRIFT = 1 / 32
"""A result may drift by such a part of it where roundings to the nearest go one way many times in a row; what drifts
further, as a count that stands still does, is wrong, unless the other samples leave no digit of it certain."""

LARGE = 1e30
"""The number that a dtype must reach so that small ones do not overflow on their way."""

SAME_DOUBLE = 2.0**-44
"""Two doubles for the same number may differ by so much, relative to it, without a question."""

SMALLEST = float(np.finfo(np.float64).tiny) * 2.0**64
"""The oracle may be off by so much itself: below the range of normal doubles, by factors of 2^64 at most."""

View = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class _Result:
    """One result of a program on a data set, seen as the reference is.

    Arguments:
        index: which data set.
        leaf: which result of the program.
        exact: what the reference says of it.
        view: makes of what the program returns what the reference is of.
        nearby: the reference off by a few roundings of doubles: of directions, or of its own.
    """

    runs: Runs
    index: int
    leaf: int
    exact: np.ndarray
    dtype: np.dtype
    view: View
    nearby: Callable[[], np.ndarray] | None

    @property
    def reference(self) -> Reference:
        """The reference, and its bound once that is asked for."""
        return Reference(self.exact, self.dtype, self._judge)

    def _judge(self) -> Judged:
        try:
            return self._judged()
        except InterpreterLimit as limit:
            implementation, case = self.runs.implementation, self.runs.case
            if implementation.program is None and is_moved(case.structure):
                return Judged.exactly(self.exact, self.exact.shape)
            found, coarsest, own = in_doubles(self.runs.kind, implementation, case, self.runs.sets[self.index], limit)
            return _compiled(self.view(found[self.leaf]), self.dtype, coarsest, own)

    def _samples(self, charges: Charges | None = None) -> np.ndarray | None:
        """Samples of roundings, or of doubles; None if a loop does not end: nothing is known of its roundings."""
        runs, index = self.runs, self.index
        try:
            found = runs.nearly(index) if charges is None else runs.rounded(index, charges)
        except EndlessLoop:
            return None
        return np.stack([self.view(np.asarray(x)) for x in found[self.leaf]])

    def _judged(self) -> Judged:
        exact, implementation, case = self.exact, self.runs.implementation, self.runs.case
        double = self.view(self.runs.in_doubles(self.index)[self.leaf])
        samples = self._samples(self.runs.charges)
        if double.shape != exact.shape:  # which the comparison of shapes says
            return Judged.exactly(double, exact.shape)
        if not is_float(self.dtype):
            decided = not self._has_floats or (samples is not None and (samples == double).all(axis=0))
            off = np.where(decided, np.zeros(exact.shape), np.inf)
            return Judged(double, off, off)
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.where(nan_equal(double, exact.astype(double.dtype)), 0.0, np.abs(double - exact))
        own, unknown = self._leeway(double, apart), self._unknown
        leeway = own
        if implementation.within:  # by design, so that its own doubles are what it is to be near to
            leeway = own + implementation.within * self._largest()
            exact = np.where(apart <= leeway, double, exact)
            apart = np.where(apart <= leeway, 0.0, apart)
        more = np.where(np.isnan(apart), leeway, np.minimum(apart, leeway))
        if samples is None:
            bound = spread = np.full(exact.shape, np.inf)
        else:
            finite = np.isfinite(samples).all() or self._finite()
            bound = bound_of(exact, double, samples, self.dtype, more=more, finite=finite)
            spread = FACTOR * spread_of(samples[::2], double) + np.minimum(more, own)
        bound = np.where(unknown | np.isinf(leeway), np.where(np.isfinite(double), np.inf, -np.inf), bound)
        infinite = np.isinf(exact) & (len(case.contract.call.moving(case)) > 1)  # of a product NaN is as right
        spread = np.where(np.abs(bound) >= ANY_FINITE, np.inf, spread)
        leeway = np.where(unknown | infinite, np.inf, leeway)
        return Judged(double, np.where(infinite, -1.0, bound), leeway, exact, spread)

    def _is_at_an_end(self, *, wide: bool) -> bool:
        """True of floats of which a product of `MOST_FACTORS` leaves the range of their dtype.

        Arguments:
            wide: whether of 64 bits, whose range no dtype widens.
        """
        for x in (x for x in self.runs.sets[self.index] if is_float(x.dtype)):
            if real_of(x.dtype).itemsize == 8 or not wide:
                ends = smallest_normal(x.dtype), 1 / largest_finite(x.dtype)
                least, size = max(ends) ** (1 / MOST_FACTORS), magnitude(x)
                if ((size > 0) & ((size < least) | (size > 1 / least))).any():
                    return True
        return False

    @property
    def _has_floats(self) -> bool:
        """True unless the reference has none, so that no rounding decides what is right."""
        oracle, given = self.runs.case.contract.oracle, [x.dtype for x in self.runs.sets[self.index]]
        return oracle.generic or any(map(is_float, given))

    @property
    def _derivative(self) -> bool:
        return self.runs.kind != "value"

    @property
    def _doubt(self) -> float:
        return self.runs.case.contract.oracle.doubt[self._derivative]

    @property
    def _unknown(self) -> np.ndarray:
        """True where the reference has no derivative, as at a kink."""
        return np.isnan(self.exact) & (self._derivative and self._doubt > 0)

    def _largest(self) -> np.ndarray | float:
        """The largest number of an array, or of each of its rows."""
        size, case = size_of(self.exact), self.runs.case
        if not self.runs.implementation.by_row or not case.operands:
            return float(size.max(initial=0))
        if self.view is np.asarray:
            return size.max(axis=-1, keepdims=True) if size.ndim else size
        placed = case.contract.call.placed
        assert placed is not None  # of programs alone anything is said
        placements = placed(case)
        spec = placements[self.leaf % len(placements)].spec
        along = [-1, *(case.mesh.axis_names.index(name) for name in spec[-1])] if spec else []
        return np.asarray(size.max(axis=tuple(along), keepdims=True, initial=0))

    def _finite(self) -> np.ndarray | bool:
        """True where results must be finite if mathematics is: not of sums of JAX's derivatives in narrow dtypes.

        Nor of derivatives, or of operands, near an end of their dtype, of which some factor may be beyond it; nor of
        users' programs, unless they ask for large numbers.
        """
        runs = self.runs
        if (program := runs.implementation.program) is not None and "large" in program.kinds and not self._derivative:
            return True
        if runs.case.contract.oracle.generic or "narrow_accumulation" in runs.implementation.features:
            return False
        if not self._derivative:
            return True
        if magnitude(self.exact).max(initial=0) > largest_finite(self.dtype) ** 0.5 or self._is_at_an_end(wide=False):
            return False
        samples = self._samples(dataclasses.replace(runs.charges, least="float64"))
        return samples is not None and np.isfinite(samples).all(axis=0)

    def _leeway(self, double: np.ndarray, apart: np.ndarray) -> np.ndarray:
        """The bound of doubles around the reference, for roundings of doubles and of constants alone."""
        size = size_of(self.exact)
        largest = float(size.max(initial=0))
        leeway = (
            SAME_DOUBLE * size
            + SAME_DOUBLE * largest / 16
            + SMALLEST
            + self._doubt * max(float(self._derivative), largest)
        )
        close = apart <= leeway / 2  # half, as apart is rounded here and there in other ways
        if (close | self._unknown).all():
            return leeway
        near = self._samples()
        if near is None or (self._is_at_an_end(wide=True) and self.runs.leaves_range(self.index)):
            return np.full(self.exact.shape, np.inf)
        with np.errstate(invalid="ignore", over="ignore"):
            off = np.where(nan_equal(near, double), 0.0, np.abs(near - double))
            off[::2] *= LARGER
            spread = np.where(np.isfinite(off), off, np.inf).max(axis=0, initial=0.0)
            leeway = leeway + FACTOR * SAMPLES / len(near) * spread
            if self.nearby is None:
                return leeway
            other = np.abs(self.nearby() - self.exact).astype(np.float64)
        other = np.where(np.isnan(other), np.inf, other)  # beside it there is a kink: nothing is known
        return leeway + np.where(np.isfinite(self.exact), other, 0.0)


def bound_of(
    exact: np.ndarray,
    double: np.ndarray,
    samples: np.ndarray,
    dtype: np.dtype,
    *,
    more: np.ndarray | float = 0.0,
    finite: np.ndarray | bool = True,
) -> np.ndarray:
    """The bound of results of a float dtype, elementwise; negative: or not finite.

    Arguments:
        exact: what is right.
        double: the results in double precision.
        samples: the results with each operation rounded at random, along a first dimension.
        more: how far off they may be besides.
        finite: whether they must be finite where `double` is, whatever overflows before.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        known = np.isfinite(samples)
        reach = FACTOR * SAMPLES / len(samples) * spread_of(samples, double, weighted=True) + more
        if not np.iscomplexobj(samples):  # roundings that all go one way are none that samples show
            low, high = (of(samples - double, axis=0) for of in (np.min, np.max))
            off = np.maximum(low, -high) > (high - low) + 2 * COARSE * half_spacing(magnitude(double), dtype)
            reach = np.where(off & known.all(axis=0) & np.isfinite(double), np.inf, reach)
        size = size_of(exact)
        drift = np.abs(samples[0] - double)  # of the sample that rounds to the nearest
        drifts = drift <= DRIFT * size
        if not drifts.all():  # or not even its first digit is certain
            drifts |= np.isfinite(drift) & (2 * spread_of(samples, double) > size)
        reach = np.where(drifts, np.maximum(reach, FACTOR * drift + more), reach)
        moves = (reach > 0) | ~nan_equal(round_to(exact, dtype).astype(exact.dtype), exact)
        bound = reach + np.where(moves, half_spacing(np.asarray(size + reach), dtype) + flush_error(dtype), 0.0)
        beyond = ~(size + bound <= largest_finite(dtype))
        overflows, lost = (~some & np.isfinite(double) for some in (known.all(axis=0), known.any(axis=0)))
        must = np.where(beyond, -bound, np.where(lost, ANY_FINITE, bound))
        return np.where(finite, must, np.where(lost, -np.inf, np.where(beyond | overflows, -bound, bound)))


def spread_of(samples: np.ndarray, double: np.ndarray, *, weighted: bool = False) -> np.ndarray:
    """Elementwise, the largest deviation of samples that are finite; infinite where only they are numbers.

    Arguments:
        samples: `[samples, ...]`, every other one with single steps.
        double: what they deviate from.
        weighted: whether deviations of single steps count as many times as other ones are larger; not those of the
            first sample, which rounds to the nearest, and so the same way each time.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        off = np.where(np.isfinite(samples), np.abs(samples - double), 0.0)
        if len(samples) > 1:
            off[0] = np.where(np.isnan(off[0]), off[0], 0.0)  # a number where doubles have none is no rounding
        if weighted:
            off[::2] *= LARGER
        spread = off.max(axis=0, initial=0.0)
    return np.where(np.isnan(spread), np.inf, spread)


def _compiled(double: np.ndarray, dtype: np.dtype, coarsest: float, own: float) -> Judged:
    """The judgement where doubles were compiled: relative to the largest result."""
    if not is_float(dtype):
        return Judged.exactly(double, double.shape)
    size = max(1.0, float(magnitude(double).max(initial=0)))
    return Judged(double, np.full(double.shape, max(own, coarsest) * size), np.full(double.shape, coarsest * size))


def value_references(implementation: Implementation, case: Case, sets: Sets) -> Iterator[list[Reference]]:
    """The oracle's results on each data set, as blocks, and their bounds."""
    runs, oracle, view = Runs("value", implementation, case, sets), case.contract.oracle, partial(all_blocks, case)
    for index, arrays in enumerate(sets):
        blocks = [case.blocks(i, array) for i, array in enumerate(arrays)]
        exact = reference_blocks(case, blocks)
        dtypes = oracle.result_dtypes(case, [np.dtype(array.dtype) for array in arrays])[: len(exact)]
        near = oracle.nearby and partial(nearby_blocks, case, blocks)
        yield [
            _Result(runs, index, leaf, e, dtype, view, near and partial(near, leaf)).reference
            for leaf, (e, dtype) in enumerate(zip(exact, dtypes, strict=True))
        ]


def derivative_references(
    kind: str,
    implementation: Implementation,
    case: Case,
    sets: Sets,
    right: Sequence[tuple[Sequence[np.ndarray], Sequence[np.ndarray]]],
    dtypes: tuple[Sequence[np.dtype], Sequence[np.dtype]],
    placements: Sequence[Placement],
    nearby: Callable[[int], tuple[Sequence[np.ndarray], Sequence[np.ndarray]]],
) -> Iterator[tuple[list[Reference], list[Reference]]]:
    """The oracle's tangents, as blocks, and gradients, as global arrays, and their bounds; a pair for each data set.

    Arguments:
        kind: one of `MODES`; the program's results are values, tangents in forward mode, then gradients.
        sets: operands, tangents and cotangents.
        right: the oracle's tangents and gradients, empty in a mode that the program lacks.
        nearby: the oracle's on a data set in directions that are off by a few roundings of doubles.
    """
    runs, results = Runs(kind, implementation, case, sets), len(placements)
    views: list[list[View]] = [
        [partial(placed_blocks, case, placement=at) for at in placements],
        [np.asarray] * len(dtypes[1]),
    ]

    def references(index: int, mode: int, exact: Sequence[np.ndarray]) -> list[Reference]:
        first = results * (1 + (mode and MODES[kind][0]))

        def near(i: int) -> np.ndarray:
            return nearby(index)[mode][i]

        return [
            _Result(runs, index, first + i, e, dtype, view, partial(near, i)).reference
            for i, (e, dtype, view) in enumerate(zip(exact, dtypes[mode], views[mode], strict=False))
        ]

    for index, (pushed, pulled) in enumerate(right):
        yield references(index, 0, pushed), references(index, 1, pulled)


def slightly_off(x: np.ndarray) -> np.ndarray:
    """A widened array of which each number is off by up to 2^-46 of itself."""
    random = np.random.default_rng(0)
    return np.asarray(x.astype(wide(x.dtype)) * (1 + 2.0**-46 * (2 * random.random(x.shape) - 1)))


def is_a_number(right: Reference) -> Reference:
    """A reference of which only that is asked, where it is one itself, and far from the end of its dtype.

    At a kink there may be several derivatives, and programs add up theirs from different ones; but none is NaN, in
    double precision: in a dtype what is too small for it may be the root of zero.
    """

    def judge() -> Judged:
        finite, largest = np.isfinite(right.exact), largest_finite(right.dtype)
        if right.judged is not None and right.judged.double.shape == finite.shape:
            finite &= ~np.isfinite(right.judged.double)
        far = largest > LARGE and magnitude(right.exact).max(initial=0, where=finite) < largest**0.5
        none = np.full(right.exact.shape, np.inf)
        return Judged(right.exact, np.where(finite & far, ANY_FINITE, -np.inf), none)

    return Reference(np.where(np.isfinite(right.exact), right.exact, 0), right.dtype, judge)


def check_mathematics(
    case: Case, data: Data, of: Of, what: str, right: Reference, *, leaf: int = 0, view: View = np.asarray
) -> None:
    """Compares results in double precision where they are known, as `compare` does."""
    if (right.is_exact and right.found is None) or right.judged is None:
        return
    double, leeway = right.judged.double, right.judged.leeway
    with np.errstate(over="ignore"):
        exact, bound = right.exact.astype(double.dtype), np.where(np.isinf(leeway), -np.inf, leeway)
    reference = Reference(exact, exact.dtype, lambda: Judged(exact, bound, bound))
    what = f"{what} in double precision"
    compare(case, data, of, what, actual=view(double), right=reference, view=view, leaf=leaf)
