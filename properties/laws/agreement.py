"""The law of engines: interpreting a program and compiling it give the same arrays, forward and backward."""

import dataclasses
from contextlib import suppress
from functools import partial

import numpy as np

from shardproof.oracles.dtypes import wide
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts.numbers import operands
from shardproof.properties.engines import Engine, SimulateEngine
from shardproof.properties.engines.engine import MODES, all_blocks, check_results, derived, ready
from shardproof.properties.laws.forward import check_replicated, check_value, shared_references
from shardproof.properties.laws.gradient import (
    at_some_data,
    check_gradient,
    cotangents,
    shared_derivatives,
    tangents_of,
)
from shardproof.properties.laws.law import Law, Verdict, whole_case
from shardproof.properties.precision.comparison import Judged, Reference, compare
from shardproof.properties.programs.implementations import Implementation

REFERENCE = SimulateEngine()


def check_agreement(implementation: Implementation, case: Case, engine: Engine) -> Verdict:
    """The engine's results equal the interpreter's, and gradients where there are any.

    They may differ by twice the bound of their roundings, one for each engine.
    """
    ours = ready("value", implementation, case, engine)
    theirs = ready("value", implementation, case, REFERENCE)
    check_results(case, ours.seen)
    sets = [operands(case, data) for data in case.data]
    compiled = [*map(ours.prepared, sets)]
    if implementation.check_vma and not case.manual and all(link.checked for link in case.links):
        check_replicated(case, ours.seen.varying, compiled)
    runs = zip(compiled, map(theirs.prepared, sets), strict=True)
    for data, right, both in zip(case.data, shared_references(implementation, case, sets), runs, strict=True):
        for i, (got, expected) in enumerate(zip(*both, strict=True)):
            blocks, actual = all_blocks(case, expected), all_blocks(case, got)
            within = twice(right[i], blocks, actual)
            compare(case, data, "result", f"result of {engine.name}", actual=actual, right=within, leaf=i)
    derivatives = at_some_data(case)
    if derivatives is not None:
        # the values agree, and a function without reverse mode has no gradients that could differ
        with suppress(NotImplementedError):
            _check_gradients(implementation, derivatives, engine)
    return Verdict("held", checked=len(case.data))


def twice(right: Reference, blocks: np.ndarray, actual: np.ndarray) -> Reference:
    """The interpreter's results as a reference, around which another engine's have twice the bound."""

    def judge() -> Judged:
        bound = np.zeros(blocks.shape) if right.bound is None else right.bound
        if blocks.shape == actual.shape:  # negative: either order may overflow
            overflows = (bound < 0) & ~np.isinf(right.exact) & ~np.isfinite(blocks.astype(wide(blocks.dtype)))
            bound = np.where(overflows, np.inf, bound)
        return Judged(blocks, 2 * bound, np.full(blocks.shape, np.inf))

    return Reference(blocks, blocks.dtype, judge)


def check_interpreted(implementation: Implementation, case: Case, engine: Engine) -> Verdict:
    """Compares with the oracle what the law compares between engines."""
    verdict = check_value(implementation, case, engine)
    derivatives = at_some_data(case)
    if derivatives is not None:
        with suppress(NotImplementedError):  # the values are right all the same
            further = check_gradient(implementation, derivatives, engine)
            verdict = dataclasses.replace(verdict, checked=verdict.checked + further.checked)
    return verdict


def _check_gradients(implementation: Implementation, case: Case, engine: Engine) -> None:
    kind, ours = derived(implementation, case, engine)
    same, theirs = derived(implementation, case, REFERENCE)
    if kind != same or not MODES[kind][1]:
        return
    moving = case.contract.call.moving(case)
    given = [(operands(case, data), tangents_of(case, data), cotangents(case, ours, data)) for data in case.data]
    sets = [[*primal, *tangents, *cts] for primal, tangents, cts in given]
    right = shared_derivatives(kind, implementation, case, ours.placements, case.data, given)
    runs = zip(map(ours.prepared, sets), map(theirs.prepared, sets), strict=True)
    for data, (_, pulled), both in zip(case.data, right, runs, strict=True):
        got, expected = (outputs[-len(moving) :] for outputs in both)
        for i, reference, left, other in zip(moving, pulled, got, expected, strict=True):
            within = twice(reference, np.asarray(other), np.asarray(left))
            view = partial(case.blocks, i)
            compare(
                case, data, "gradient", f"gradient of {engine.name}", actual=view(left), right=within, view=view, leaf=i
            )


def without_eager(case: Case) -> Case | None:
    """A valid case under `jit`."""
    whole = whole_case(case)
    return whole if whole is not None and all(link.compiled for link in whole.links) else None


AGREEMENT = Law(
    "agreement",
    "The interpreter and XLA agree on every program, and on its gradients.",
    check_agreement,
    without_eager,
    lambda implementation, engine: implementation.contract.oracle.holds is None,  # engines may differ by the relation
    engines=("xla",),
    check_simulated=check_interpreted,
    derives=True,
    optional=lambda implementation: True,
)
