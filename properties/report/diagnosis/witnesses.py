"""The run that failed, and further runs of the same function on data that tells explanations apart.

On one element, or on zeros, many explanations fit by coincidence. What is true of a function, and not of
the numbers that it happened to get, is true of other numbers as well.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from shardproof.oracles.dtypes import rounded, width
from shardproof.oracles.transposes import enter, leave
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.contracts.contract import Contract, Mistake
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
from shardproof.properties.precision.numbers import is_moved, operands, pulled_terms
from shardproof.properties.programs.violation import Broken, Difference
from shardproof.properties.report.diagnosis.scene import Oracle, Scene
from shardproof.properties.runner.violation import LawViolation

MOST = 64
"""The largest mesh on which the function is run on larger blocks, and on more than one further data set."""

ELEMENTS = 24
"""How many elements of 16 bits or more a block has that no other resembles; of fewer bits, more."""

FURTHER = 1_000_003
"""How far the seeds of further data sets are from that of the first."""

MOST_RUNS = 40
"""How many data sets the function is run on, at most, so that there are as many numbers as there may be unknowns."""


def scenes_of(violation: LawViolation) -> list[Scene]:
    """The scene of a violation, first, and those of further runs, none where the failure does not come again."""
    difference, case, data = violation.difference, violation.case, violation.data
    if difference is None or not difference.comparable:
        return []
    inputs, oracle, mistakes, leaf = _mapped(violation, case, data, difference)
    own = Scene.of(case, difference, inputs, oracle, leaf, mistakes)
    engine = _engine(violation, own)
    if engine is None or data is None:
        return [own]
    alike = [_observed(violation, case, more, engine) for more in _others(case, data, own.actual[0].size)]
    longer: list[Scene | None] = []
    if engine.name == "simulate" and case.mesh.size <= MOST:  # larger blocks are others to be compiled
        for larger in (enlarged(case), enlarged(case, sharded=False)):
            if larger is not None and not any(longer):
                longer = [_observed(violation, larger, more, engine) for more in _of_larger(data)]
    # larger blocks on which all is right do not show the bug, and say nothing of it
    shown = [scene for scene in longer if scene is not None and scene.devices]
    return [own, *(scene for scene in alike if scene is not None), *shown]


def _engine(violation: LawViolation, own: Scene) -> Engine | None:
    """The engine that gives the wrong blocks once more: the interpreter, if it does."""
    assert violation.difference is not None
    if violation.data is None or violation.law.between_engines or violation.difference.of == "array":
        return None
    for name in dict.fromkeys(("simulate", violation.engine)):
        engine = engine_named(name)
        again = _observed(violation, violation.case, violation.data, engine)
        if again is not None and np.array_equal(again.wrong, own.wrong) and own.same(again.actual, own.actual).all():
            return engine
    return None


def _others(case: Case, data: Data, elements: int) -> Iterator[Data]:
    """Data sets on which to run the function again."""
    seed = data.seed + FURTHER
    moved = is_moved(case)
    yield Data("distinct" if moved else "exact", seed)
    if case.mesh.size > MOST:
        return
    unknown = case.mesh.size
    if CONTRACTS[case.contract].degree == 2:  # which of the sides that are added up
        unknown *= max(min(o.block[-1], o.block[-2]) for o in case.operands)
    wanted = max(2 * unknown, _telling(case))
    runs = min(3 + wanted // max(elements, 1), MOST_RUNS)
    for i in range(1, runs):
        yield Data("exact", seed + i)
    if data.kind not in ("distinct", "exact"):
        for i, kind in enumerate((data.kind, data.kind, "special" if data.kind == "nan" else data.kind)):
            yield Data(kind, seed + runs + i)


def _of_larger(data: Data) -> Iterator[Data]:
    """The same on larger blocks, of which few are enough."""
    for i in range(3):
        yield Data("exact", data.seed + FURTHER + i)
    if data.kind not in ("distinct", "exact"):
        yield Data(data.kind, data.seed + FURTHER)


def _telling(case: Case) -> int:
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
    wanted = _telling(case)
    smallest = min(case.operands, key=lambda o: math.prod(o.block))
    sizes = math.prod(smallest.block)
    scaled = [
        [
            n if i in fixed or i - len(o.block) in fixed or (axes and not sharded) else None
            for i, (n, axes) in enumerate(zip(o.block, o.placement.spec, strict=True))
        ]
        for o in case.operands
    ]
    free = sum(side is None for side in scaled[case.operands.index(smallest)])
    if not sizes or not free:
        return None
    factor = next((f for f in (3, 5, 7, 9) if sizes * f**free >= wanted), 11)
    blocks = [
        tuple(n * factor if side is None else side for n, side in zip(o.block, sides, strict=True))
        for o, sides in zip(case.operands, scaled, strict=True)
    ]
    if max(map(math.prod, blocks)) * case.mesh.size * case.participants > 2_000_000:
        return None
    larger = tuple(dataclasses.replace(o, block=b) for o, b in zip(case.operands, blocks, strict=True))
    return dataclasses.replace(case, operands=larger)


def _observed(violation: LawViolation, case: Case, data: Data, engine: Engine) -> Scene | None:
    """What the function does on a case: a scene, of right blocks as well; None where another thing goes wrong first."""
    assert violation.difference is not None
    first = violation.difference
    check = check_gradient if violation.broken.of_derivative else check_value
    case = dataclasses.replace(case, data=(data,))
    difference: Difference | None = None
    try:
        check(violation.implementation, case, engine)
    except Broken as found:
        difference = found.difference
        if (
            difference is None
            or (difference.of, difference.leaf) != (first.of, first.leaf)
            or not difference.comparable
        ):
            return None
    except Exception:  # a function may refuse these blocks, or an engine the function: then this run tells nothing
        return None
    inputs, oracle, mistakes, leaf = _mapped(violation, case, data, difference or first)
    if difference is None:
        if not inputs:
            return None
        right = rounded(oracle(case, inputs), first.expected.dtype)
        difference = Difference(first.of, first.what, right, right, np.zeros(right.shape, bool), leaf=first.leaf)
    return Scene.of(case, difference, inputs, oracle, leaf, mistakes)


def _mapped(
    violation: LawViolation, case: Case, data: Data | None, difference: Difference
) -> tuple[list[np.ndarray], Oracle, Mapping[str, Oracle], int]:
    """What went in, the oracle of it, those of the contract's mistakes, and which of the results was looked at."""
    of, leaf = difference.of, difference.leaf
    contract = CONTRACTS[case.contract]
    doubles = difference.in_doubles(case)

    def results(rules: Contract | Mistake) -> Oracle:
        def oracle(of: Case, blocks: list[np.ndarray]) -> np.ndarray:
            exact = value_over_batch(of, rules, widened_operands(of, blocks))[leaf]
            own = np.dtype(np.float64) if doubles else contract.result_dtypes(of, [b.dtype for b in blocks])[leaf]
            return rounded(exact, own)

        return oracle

    def all_of(make: Callable[[Contract | Mistake], Oracle]) -> tuple[Oracle, Mapping[str, Oracle]]:
        return make(contract), {text: make(mistake) for text, mistake in contract.mistakes.items()}

    if data is None or violation.law.between_engines or of not in ("result", "tangent", "gradient"):
        return [], *all_of(results), leaf
    if of == "result":
        return [case.blocks(i, a) for i, a in enumerate(operands(case, data))], *all_of(results), leaf
    if case.tree:  # of which leaf a derivative is, is not said
        return [], *all_of(results), 0
    primal = [case.blocks(i, a) for i, a in enumerate(operands(case, data, pulled_terms(case)))]
    if of == "tangent":
        tangents = tangents_of(case, data)

        def pushforward(rules: Contract | Mistake) -> Oracle:
            return lambda of, blocks: pushed_over_batch(of, rules, primal, blocks)[0]

        moving = contract.moving(case)
        went_in = [case.blocks(i, a) for i, a in zip(moving, tangents, strict=True)]
        return went_in, *all_of(pushforward), 0
    return _cotangents(violation, case, data, primal), *all_of(partial(_pullback, case, primal, leaf)), 0


def _cotangents(violation: LawViolation, case: Case, data: Data, primal: list[np.ndarray]) -> list[np.ndarray]:
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


def _pullback(case: Case, primal: list[np.ndarray], index: int, rules: Contract | Mistake) -> Oracle:
    """The gradient of an operand, as blocks, given the results' cotangents as blocks."""

    def pullback(of: Case, blocks: list[np.ndarray]) -> np.ndarray:
        mesh, operand = of.mesh, of.operands[index]
        contract = CONTRACTS[of.contract]
        gradients = pulled_over_batch(of, rules, primal, blocks)
        pulled = gradients[contract.moving(of).index(index)]
        stacked = (1 for _ in operand.placement.stacked)
        spread = pulled.reshape(*mesh.sizes, *stacked, *pulled.shape[len(mesh.sizes) :])
        return of.blocks(index, leave(spread, mesh, of.partition(index)))

    return pullback
