"""The run that failed, and more runs of the same function: a pattern in one data set may be a coincidence."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardproof.oracles.dtypes import is_float, round_to, unit_roundoff, wide, width
from shardproof.oracles.layout import device_name, nan_equal
from shardproof.properties.cases.case import Case, Operand
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts.numbers import is_moved, operands
from shardproof.properties.engines import Engine, engine_named
from shardproof.properties.engines.engine import ready
from shardproof.properties.laws.forward import check_value
from shardproof.properties.laws.gradient import check_gradient, cotangents, exact_gradients, exact_tangents, tangents_of
from shardproof.properties.laws.law import LawViolation
from shardproof.properties.precision.comparison import magnitude
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.transformations import value_over_batch, widened_operands
from shardproof.properties.programs.violation import Broken, Difference

MOST = 64
"""The largest mesh on which the function is run on larger blocks, and on more than one further data set."""

ELEMENTS = 24
"""How many elements of 16 bits or more make a block unlike any other; of fewer bits, four times as many."""

CLEAR = 4.0
"""How many times the tolerance a hypothesis differs from the right values by, at least, where it explains them."""

Blocks = np.ndarray
"""The blocks of all devices, in mesh order: `[devices, *block]`."""


@dataclass(frozen=True)
class Run:
    """The blocks of one run on one data set."""

    violation: LawViolation  # the violation to explain
    case: Case  # the case, with that data set alone
    difference: Difference  # of the law; nothing is wrong in it where the blocks are right
    # the blocks `[*mesh.sizes, *batch, *block]` of the operands; empty where derivatives are compared
    inputs: list[np.ndarray]
    engine: str = "simulate"
    places: tuple[int, ...] = ()  # the devices whose block is wrong on one of the data sets

    @cached_property
    def expected(self) -> Blocks:
        """The right blocks."""
        return self.flat(self.difference.expected)

    @cached_property
    def actual(self) -> Blocks:
        """The implementation's blocks."""
        return self.flat(self.difference.actual)

    @cached_property
    def wrong(self) -> Blocks:
        """Elementwise, where they differ."""
        return self.flat(self.difference.wrong)

    @cached_property
    def tolerance(self) -> float:
        """How far values may differ and still count as the same."""
        bound = self.difference.bound
        return 0.0 if bound is None else float(np.abs(bound[np.isfinite(bound)]).max(initial=0))

    @property
    def own(self) -> Blocks | None:
        """Each device's input, of the operand that the result belongs to, if it has the result's shape."""
        leaf = self.difference.leaf
        blocks = self.flat(self.inputs[leaf]) if leaf < len(self.inputs) else None
        return None if blocks is None or blocks.shape != self.actual.shape else blocks.astype(self.actual.dtype)

    def oracle(self, case: Case, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The right results `[*mesh.sizes, *block]` of a case like this, given its input blocks."""
        leaf = self.difference.leaf
        exact = value_over_batch(case, widened_operands(case, inputs))[leaf]
        doubles = self.difference.in_doubles(case)
        dtype = np.float64 if doubles else case.contract.oracle.result_dtypes(case, [x.dtype for x in inputs])[leaf]
        return round_to(exact, np.dtype(dtype))

    def flat(self, blocks: np.ndarray) -> Blocks:
        """Blocks `[*mesh.sizes, *block]`, the devices in one row."""
        return blocks.reshape(-1, *blocks.shape[len(self.case.mesh.sizes) :])

    def name(self, device: int) -> str:
        """A device by its coordinates: `(dp=0, tp=1)`."""
        return device_name(self.case.mesh, tuple(int(i) for i in np.unravel_index(device, self.case.mesh.sizes)))

    def near(self, left: Blocks, right: Blocks, off: float | np.ndarray) -> np.ndarray:
        """Elementwise, whether values are equal, or no further off than that."""
        with np.errstate(invalid="ignore", over="ignore"):
            by = np.abs(left.astype(wide(left.dtype)) - right.astype(wide(right.dtype))) if np.any(off) else np.inf
            return nan_equal(left, right) | np.asarray(by <= off)

    def equals(self, blocks: Blocks, actual: Blocks) -> bool:
        """True if predicted blocks are the actual ones, but for as many roundings as right blocks may have."""
        if blocks.shape != actual.shape or blocks.dtype != actual.dtype:
            return False
        off: float | np.ndarray = self.tolerance
        right = is_float(blocks.dtype) and not self.wrong.any() and not is_moved(self.case.structure)
        if off or right:  # the bound is that of the right values, or of right blocks not known
            scale = np.abs(np.where(np.isfinite(blocks), blocks, 0).astype(wide(blocks.dtype)))
            floats = (x for x in [self.actual, *self.inputs] if is_float(x.dtype) and right)
            scale = np.maximum(scale, max((float(magnitude(x).max(initial=0)) for x in floats), default=0.0))
            off = np.maximum(off, 4 * unit_roundoff(blocks.dtype) * scale)  # both are rounded
        return bool(self.near(blocks, actual, off).all())

    def observe(self, implementation: Implementation) -> Blocks | None:
        """The blocks of another implementation on the same case and data; None if it fails otherwise."""
        try:
            found = _compare(self.violation, implementation, self.case, engine_named(self.engine))
        except Exception:  # which a planted bug may raise here, whatever it is
            return None
        return self.expected if found is None else self.flat(found.actual)


def runs_of(violation: LawViolation) -> list[Run]:
    """The run of a violation, first, and more runs, unless the failure is not reproducible."""
    difference, case, data = violation.difference, violation.case, violation.data
    if difference is None or not difference.comparable:
        return []
    found: list[Run | None] = [Run(violation, _on(case, data), difference, _inputs(violation, case, data))]
    engine = _engine(violation, difference)
    if engine is not None and data is not None:
        size = math.prod(difference.actual.shape[len(case.mesh.sizes) :])
        # derivatives of a user's program are hardly checked at integers, where there may be kinks
        usual = "real" if violation.broken.of_derivative and case.contract.oracle.generic else "exact"
        found += [_observe(violation, case, more, engine) for more in _others(case, data, size, usual)]
        if engine.name == "simulate" and case.mesh.size <= MOST:  # larger blocks would have to be compiled again
            both = (enlarge(case, violation.implementation, sharded=sharded) for sharded in (True, False))
            cases = [larger for larger in both if larger is not None]
            pairs = ((one, _others(one, data, MOST, usual)) for one in cases)
            tried = ([_observe(violation, one, more, engine) for more in others] for one, others in pairs)
            longer = next((runs for runs in tried if any(runs)), [])
            # larger blocks on which all is right do not show the bug
            found += [run for run in longer if run is not None and run.wrong.any()]
    runs = [run for run in found if run is not None]
    wrong = [run.wrong.reshape(len(run.wrong), -1).any(axis=1) for run in runs]
    places = tuple(int(d) for d in np.flatnonzero(np.logical_or.reduce(wrong)))
    return [dataclasses.replace(run, places=places) for run in runs]


def _on(case: Case, data: Data | None) -> Case:
    return case if data is None else dataclasses.replace(case, data=(data,))


def _engine(violation: LawViolation, difference: Difference) -> Engine | None:
    """The engine that gives the wrong blocks again: the interpreter, if it does."""
    if violation.data is None or violation.law.between_engines or difference.of == "array":
        return None
    for name in dict.fromkeys(("simulate", violation.engine)):
        run = _observe(violation, violation.case, violation.data, engine_named(name))
        again = run is not None and np.array_equal(run.difference.wrong, difference.wrong)
        if run is not None and again and run.near(run.difference.actual, difference.actual, run.tolerance).all():
            return engine_named(name)
    return None


def _others(case: Case, data: Data, elements: int, usual: str) -> list[Data]:
    """Data sets on which to run the function again: more where blocks are small, and some like that of the failure."""
    seed, count = data.seed + 1_000_003, min(3 + _enough(case) // max(elements, 1), 12)
    like = [] if data.kind in ("distinct", "exact") else [data.kind, data.kind, "special" if data.kind == "nan" else ""]
    kinds = ["distinct" if is_moved(case.structure) else usual, *[usual] * count, *like]
    return [Data(kind or data.kind, seed + i) for i, kind in enumerate(kinds[: 1 if case.mesh.size > MOST else None])]


def _enough(case: Case) -> int:
    """The number of elements from which no two blocks are equal by coincidence."""
    return ELEMENTS * (1 if min(width(o.numpy_dtype) for o in case.operands) >= 16 else 4)


def enlarge(case: Case, implementation: Implementation | None = None, *, sharded: bool = True) -> Case | None:
    """The case with sides an odd number of times as long, so that blocks differ, and odd sides stay odd.

    Arguments:
        case: the case.
        implementation: the implementation, if it may state sizes, which stay as they are, or support no other case.
        sharded: whether the sides that are sharded are longer as well.
    """
    params = case.keywords
    stated = [_stated_dimensions(implementation, i) for i in range(len(case.operands))]
    fixed = () if params.get("tiled", True) else (params.get("split_axis"), params.get("scatter_dimension"))

    def longer(operand: Operand, same: set[int], factor: int) -> tuple[int, ...]:
        spec, rank = operand.placement.spec, len(operand.block)
        same = same | {i for i in range(rank) if (spec[i] and not sharded) or i in fixed or i - rank in fixed}
        return tuple(n if i in same else n * factor for i, n in enumerate(operand.block))

    for factor in (3, 5, 7, 9, 11):
        pairs = zip(case.operands, stated, strict=True)
        larger = tuple(dataclasses.replace(o, block=longer(o, same, factor)) for o, same in pairs)
        sizes = [math.prod(operand.block) for operand in larger]
        if min(sizes) >= _enough(case) or factor == 11:
            too_many = max(sizes) * case.mesh.size * case.participants > 2_000_000
            found = dataclasses.replace(case, operands=larger)
            served = implementation is None or implementation.serves is None or implementation.serves(found)
            return None if too_many or larger == case.operands or not served else found
    return None


def has_stated_sizes(case: Case, like: Case, implementation: Implementation) -> bool:
    """True if what a description states of the sizes of blocks is the same in both cases."""
    pairs = enumerate(zip(case.operands, like.operands, strict=True))
    return all(a.block[d] == b.block[d] for i, (a, b) in pairs for d in _stated_dimensions(implementation, i))


def _stated_dimensions(implementation: Implementation | None, operand: int) -> set[int]:
    """The dimensions of an operand whose sizes a description states, or has the participants state."""
    program = None if implementation is None else implementation.program
    if program is None:
        return set()
    dimensions, sizes = program.signature.arrays[operand].dimensions, program.conditions.sizes
    return {i for i, d in enumerate(dimensions) if d.fixed or not d.name or not d.simple or d.name in sizes}


def _compare(violation: LawViolation, implementation: Implementation, case: Case, engine: Engine) -> Difference | None:
    """The difference of an implementation's blocks, None if there is none; NotImplementedError for another mistake."""
    first, check = violation.difference, check_gradient if violation.broken.of_derivative else check_value
    try:
        check(implementation, case, engine)
    except Broken as found:
        other = found.difference
        if first is None or other is None or not other.comparable or (other.of, other.leaf) != (first.of, first.leaf):
            raise NotImplementedError from found
        return other
    return None


def _observe(violation: LawViolation, case: Case, data: Data, engine: Engine) -> Run | None:
    """Another run, maybe with right blocks; None where it fails otherwise."""
    case, first = _on(case, data), violation.difference
    assert first is not None
    try:
        difference = _compare(violation, violation.implementation, case, engine)
        if difference is None:
            right = _right(violation, case, data)
            difference = Difference(first.of, first.what, right, right, np.zeros(right.shape, bool), leaf=first.leaf)
    except Exception:  # a function may raise anything on other blocks, or an engine refuse it
        return None
    return Run(violation, case, difference, _inputs(violation, case, data), engine.name)


def _right(violation: LawViolation, case: Case, data: Data) -> np.ndarray:
    """The right blocks on a data set on which the function is right."""
    first = violation.difference
    assert first is not None
    if first.of == "result":
        inputs = _inputs(violation, case, data)
        return round_to(Run(violation, case, first, inputs).oracle(case, inputs), first.expected.dtype)
    primal = operands(case, data)
    if first.of == "tangent":
        return round_to(exact_tangents(case, primal, tangents_of(case, data))[first.leaf], first.expected.dtype)
    program = ready("reverse gradient", violation.implementation, case, engine_named("simulate"))
    pulled = exact_gradients(case, program.placements, primal, cotangents(case, program, data))
    gradient = pulled[case.contract.call.moving(case).index(first.leaf)]
    return case.blocks(first.leaf, gradient).astype(first.expected.dtype)


def _inputs(violation: LawViolation, case: Case, data: Data | None) -> list[np.ndarray]:
    """The blocks of the operands, of results alone."""
    of_values = violation.difference is not None and violation.difference.of == "result"
    if data is None or violation.law.between_engines or not of_values:
        return []
    return [case.blocks(i, a) for i, a in enumerate(operands(case, data))]
