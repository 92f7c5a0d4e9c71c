"""The run that failed, and further runs of the same function: what is true of one data set may be so by coincidence."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from shardproof.oracles.dtypes import is_float, rounded, unit_roundoff, wide, width
from shardproof.oracles.layout import device_name, nan_equal
from shardproof.oracles.transposes import enter, leave
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.engines import Engine, engine_named
from shardproof.properties.engines.batches import (
    pulled_over_batch,
    pushed_over_batch,
    value_over_batch,
    widened_operands,
)
from shardproof.properties.engines.running import ready
from shardproof.properties.laws.gradient import check_gradient, cotangents, tangents_of
from shardproof.properties.laws.value import check_value
from shardproof.properties.precision.numbers import is_moved, largest_of, operands, pulled_terms
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import Broken, Difference
from shardproof.properties.runner.violation import LawViolation

MOST = 64
"""The largest mesh on which the function is run on larger blocks, and on more than one further data set."""

ELEMENTS = 24
"""How many elements of 16 bits or more a block has that no other resembles; of fewer bits, four times as many."""

FURTHER = 1_000_003
"""How far the seeds of further data sets are from that of the first."""

MOST_RUNS = 12
"""On how many data sets of the same structure the function is run, at most."""

CLEAR = 4.0
"""How many times the tolerance a hypothesis differs from the right values by, at least, where it explains them."""

COARSER = 4
"""So many roundings may lie between a wrong result and what explains it, where right ones are rounded as well."""

Blocks = np.ndarray
"""The blocks of all devices, in mesh order: `[devices, *block]`."""

Oracle = Callable[[Case, Sequence[np.ndarray]], np.ndarray]
"""The right blocks `[*mesh.sizes, *block]` of a case, given the blocks that go in."""

Observe = Callable[[Implementation], Blocks | None]
"""The blocks of another implementation on the same case and data; None where it does not get so far."""


@dataclass(frozen=True)
class Run:
    """The blocks of one run on one data set.

    Arguments:
        case: the case.
        expected: the right blocks.
        actual: the implementation's.
        wrong: elementwise, where they differ.
        tolerance: how far values may be apart and still count as the same.
        inputs: the blocks `[*mesh.sizes, *batch, *block]` that went in: operands, tangents or cotangents; empty where
            they are not known.
        oracle: the right blocks of such inputs.
        observe: runs another implementation.
        function: what was run.
        difference: what the law compared.
        places: the devices whose block is wrong on one of the data sets.
    """

    case: Case
    expected: Blocks
    actual: Blocks
    wrong: Blocks
    tolerance: float
    inputs: list[np.ndarray]
    oracle: Oracle
    observe: Observe
    function: Callable[..., Any]
    difference: Difference
    places: tuple[int, ...] = ()

    @property
    def of_values(self) -> bool:
        """Whether operands went in, and not tangents or cotangents."""
        return self.difference.of == "result"

    @property
    def own(self) -> Blocks | None:
        """The blocks that each device put in, of the operand that the result belongs to, where they have its shape."""
        leaf = self.difference.leaf if self.of_values else 0
        if leaf >= len(self.inputs):
            return None
        blocks = self.flat(self.inputs[leaf])
        return blocks.astype(self.actual.dtype) if blocks.shape == self.actual.shape else None

    def observed(self, implementation: Implementation) -> Blocks | None:
        """The blocks of another implementation on the same case and data; None where it does not get so far."""
        return self.observe(implementation)

    def flat(self, blocks: np.ndarray) -> Blocks:
        """Blocks `[*mesh.sizes, *block]`, the devices in one row."""
        return blocks.reshape(-1, *blocks.shape[len(self.case.mesh.sizes) :])

    def name(self, device: int) -> str:
        """A device by its coordinates: `(dp=0, tp=1)`."""
        return device_name(self.case.mesh, tuple(int(i) for i in np.unravel_index(device, self.case.mesh.sizes)))

    def same(self, left: Blocks, right: Blocks, tolerance: float | None = None) -> np.ndarray:
        """Elementwise, whether values count as the same."""
        tolerance = self.tolerance if tolerance is None else tolerance
        equal = nan_equal(left, right)
        if tolerance:
            with np.errstate(invalid="ignore", over="ignore"):
                equal |= np.abs(left.astype(wide(left.dtype)) - right.astype(wide(right.dtype))) <= tolerance
        return equal

    def equals(self, blocks: Blocks, came: Blocks) -> bool:
        """Whether predicted blocks are those that came, but for as many roundings as right blocks may have."""
        if blocks.shape != came.shape or blocks.dtype != came.dtype:
            return False
        same = self.same(blocks, came)
        right = is_float(blocks.dtype) and not self.wrong.any() and not is_moved(self.case)
        if self.tolerance or right:  # whose bound is that of the right values, or unknown
            size = np.abs(blocks.astype(wide(blocks.dtype)))
            scale = np.where(np.isfinite(size), size, 0)
            if right:
                floats = (x for x in [self.actual, *self.inputs] if is_float(x.dtype))
                scale = np.maximum(scale, max(map(largest_of, floats)))
            same |= self.same(blocks, came, 0.0)
            with np.errstate(invalid="ignore", over="ignore"):
                off = np.abs(blocks.astype(wide(blocks.dtype)) - came.astype(wide(came.dtype)))
                same |= off <= COARSER * unit_roundoff(blocks.dtype) * scale
        return bool(same.all())


def runs_of(violation: LawViolation) -> list[Run]:
    """The run of a violation, first, and further ones; none of these where the failure does not come again."""
    difference, case, data = violation.difference, violation.case, violation.data
    if difference is None or not difference.comparable:
        return []
    own = _run(violation, case, data, difference, None)
    engine = _engine(violation, own)
    found: list[Run | None] = [own]
    if engine is not None and data is not None:
        found += [observed(violation, case, more, engine) for more in _others(case, data, own.actual[0].size)]
        if engine.name == "simulate" and case.mesh.size <= MOST:  # larger blocks are others to be compiled
            for larger in (enlarged(case), enlarged(case, sharded=False)):
                longer = [observed(violation, larger, more, engine) for more in _of_larger(data)] if larger else []
                found += [run for run in longer if run is not None and run.wrong.any()]
                if any(longer):
                    break
    runs = [run for run in found if run is not None]
    wrong = [run.wrong.reshape(len(run.wrong), -1).any(axis=1) for run in runs]
    places = tuple(int(d) for d in np.flatnonzero(np.logical_or.reduce(wrong)))
    return [dataclasses.replace(run, places=places) for run in runs]


def _engine(violation: LawViolation, own: Run) -> Engine | None:
    """The engine that gives the wrong blocks once more: the interpreter, if it does."""
    if violation.data is None or violation.law.between_engines or own.difference.of == "array":
        return None
    for name in dict.fromkeys(("simulate", violation.engine)):
        engine = engine_named(name)
        again = observed(violation, violation.case, violation.data, engine)
        if again is not None and np.array_equal(again.wrong, own.wrong) and own.same(again.actual, own.actual).all():
            return engine
    return None


def _others(case: Case, data: Data, elements: int) -> Iterator[Data]:
    """Data sets on which to run the function again."""
    seed = data.seed + FURTHER
    yield Data("distinct" if is_moved(case) else "exact", seed)
    if case.mesh.size > MOST:
        return
    count = min(3 + _enough(case) // max(elements, 1), MOST_RUNS)
    yield from (Data("exact", seed + i) for i in range(1, count))
    if data.kind not in ("distinct", "exact"):
        for i, kind in enumerate((data.kind, data.kind, "special" if data.kind == "nan" else data.kind)):
            yield Data(kind, seed + count + i)


def _of_larger(data: Data) -> list[Data]:
    """The same on larger blocks, of which few are enough."""
    seed = data.seed + FURTHER
    more = [] if data.kind in ("distinct", "exact") else [Data(data.kind, seed)]
    return [*(Data("exact", seed + i) for i in range(3)), *more]


def _enough(case: Case) -> int:
    """How many elements it takes for no two blocks to be equal by coincidence."""
    return ELEMENTS * (1 if min(width(o.numpy_dtype) for o in case.operands) >= 16 else 4)


def enlarged(case: Case, *, sharded: bool = True) -> Case | None:
    """The case with every side an odd number of times as long, so that blocks differ, and odd sides stay odd.

    Arguments:
        case: the case.
        sharded: whether sides that are sharded are longer as well, which some functions refuse.
    """
    params = case.keywords
    fixed = () if params.get("tiled", True) else (params.get("split_axis"), params.get("scatter_dimension"))
    smallest = min(case.operands, key=lambda o: math.prod(o.block))
    scaled = [
        [
            n if i in fixed or i - len(o.block) in fixed or (axes and not sharded) else None
            for i, (n, axes) in enumerate(zip(o.block, o.placement.spec, strict=True))
        ]
        for o in case.operands
    ]
    sizes, free = math.prod(smallest.block), sum(side is None for side in scaled[case.operands.index(smallest)])
    if not sizes or not free:
        return None
    factor = next((f for f in (3, 5, 7, 9) if sizes * f**free >= _enough(case)), 11)
    blocks = [
        tuple(n * factor if side is None else side for n, side in zip(o.block, sides, strict=True))
        for o, sides in zip(case.operands, scaled, strict=True)
    ]
    if max(map(math.prod, blocks)) * case.mesh.size * case.participants > 2_000_000:
        return None
    larger = tuple(dataclasses.replace(o, block=b) for o, b in zip(case.operands, blocks, strict=True))
    return dataclasses.replace(case, operands=larger)


def _compared(
    violation: LawViolation, implementation: Implementation, case: Case, data: Data, engine: Engine
) -> Difference | None:
    """How an implementation's blocks differ on a data set; None if they do not.

    Raises:
        NotImplementedError: if another thing goes wrong first.
    """
    first = violation.difference
    assert first is not None
    check = check_gradient if violation.broken.of_derivative else check_value
    try:
        check(implementation, dataclasses.replace(case, data=(data,)), engine)
    except Broken as found:
        other = found.difference
        if other is None or (other.of, other.leaf) != (first.of, first.leaf) or not other.comparable:
            raise NotImplementedError from found
        return other
    return None


def observed(violation: LawViolation, case: Case, data: Data, engine: Engine) -> Run | None:
    """A further run, of right blocks as well; None where another thing goes wrong first."""
    try:
        difference = _compared(violation, violation.implementation, case, data, engine)
    except Exception:  # a function may raise anything on other blocks, or an engine refuse it: this run shows nothing
        return None
    return _run(violation, dataclasses.replace(case, data=(data,)), data, difference, engine)


def _run(
    violation: LawViolation, case: Case, data: Data | None, difference: Difference | None, engine: Engine | None
) -> Run | None:
    """The run of a difference; of none, that of right blocks, if what went in is known."""
    first = violation.difference
    assert first is not None
    inputs, oracle = _mapped(violation, case, data, difference or first)
    if difference is None:
        if not inputs:
            return None
        right = rounded(oracle(case, inputs), first.expected.dtype)
        difference = Difference(first.of, first.what, right, right, np.zeros(right.shape, bool), leaf=first.leaf)
    lead, right = len(case.mesh.sizes), difference.expected

    def observe(other: Implementation) -> Blocks | None:
        if data is None:
            return None
        try:
            found = _compared(violation, other, case, data, engine or engine_named("simulate"))
        except Exception:  # which a planted bug may raise here, whatever it is
            return None
        blocks = right if found is None else found.actual
        return blocks.reshape(-1, *blocks.shape[lead:])

    expected, actual, wrong = (
        a.reshape(-1, *a.shape[lead:]) for a in (right, difference.actual, difference.wrong)
    )  # fmt: skip
    finite = np.array([]) if difference.bound is None else np.abs(difference.bound[np.isfinite(difference.bound)])
    tolerance = float(finite.max(initial=0))
    function = violation.implementation.function
    return Run(case, expected, actual, wrong, tolerance, inputs, oracle, observe, function, difference)


def _mapped(
    violation: LawViolation, case: Case, data: Data | None, difference: Difference
) -> tuple[list[np.ndarray], Oracle]:
    """The blocks that went in, and the oracle of them."""
    of, leaf, contract = difference.of, difference.leaf, CONTRACTS[case.contract]
    doubles = difference.in_doubles(case)

    def results(of: Case, blocks: Sequence[np.ndarray]) -> np.ndarray:
        exact = value_over_batch(of, contract, widened_operands(of, blocks))[leaf]
        own = np.dtype(np.float64) if doubles else contract.result_dtypes(of, [b.dtype for b in blocks])[leaf]
        return rounded(exact, own)

    if data is None or violation.law.between_engines or of not in ("result", "tangent", "gradient"):
        return [], results
    if of == "result":
        return [case.blocks(i, a) for i, a in enumerate(operands(case, data))], results
    if case.tree:  # which leaf a derivative is of is not known
        return [], results
    primal = [case.blocks(i, a) for i, a in enumerate(operands(case, data, pulled_terms(case)))]
    if of == "tangent":
        moving = contract.moving(case)
        went_in = [case.blocks(i, a) for i, a in zip(moving, tangents_of(case, data), strict=True)]
        return went_in, lambda of, blocks: pushed_over_batch(of, contract, primal, blocks)[leaf]
    return _cotangents(violation, case, data), partial(_pullback, primal, leaf)


def _cotangents(violation: LawViolation, case: Case, data: Data) -> list[np.ndarray]:
    """The cotangents of the results, as blocks."""
    for engine in dict.fromkeys(("simulate", violation.engine)):
        try:
            program = ready("reverse gradient", violation.implementation, case, engine_named(engine))
        except NotImplementedError:
            continue
        mesh, held = case.mesh, []
        for ct, placement in zip(cotangents(case, program, data), program.placements, strict=True):
            blocks = enter(ct, mesh, placement.partition())
            held.append(blocks.reshape(*mesh.sizes, *blocks.shape[len(mesh.sizes) + len(placement.stacked) :]))
        return held
    return []


def _pullback(primal: list[np.ndarray], index: int, case: Case, blocks: Sequence[np.ndarray]) -> np.ndarray:
    """The gradient of an operand, as blocks, given the results' cotangents as blocks."""
    mesh, operand, contract = case.mesh, case.operands[index], CONTRACTS[case.contract]
    pulled = pulled_over_batch(case, contract, primal, blocks)[contract.moving(case).index(index)]
    stacked = (1 for _ in operand.placement.stacked)
    spread = pulled.reshape(*mesh.sizes, *stacked, *pulled.shape[len(mesh.sizes) :])
    return case.blocks(index, leave(spread, mesh, case.partition(index)))
