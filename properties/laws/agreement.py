"""The law of engines: interpreting a program and compiling it give the same arrays, forward and backward."""

from contextlib import suppress

import numpy as np

from shardproof.oracles.dtypes import is_float, wide
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.engines import Engine, SimulateEngine
from shardproof.properties.engines.running import all_blocks, check_results, ready
from shardproof.properties.laws.gradient import cotangents, derives_at
from shardproof.properties.precision.comparison import compare
from shardproof.properties.precision.numbers import is_exact, operands, pulled_terms
from shardproof.properties.precision.runs import value_references
from shardproof.properties.programs.implementations import Implementation

REFERENCE = SimulateEngine()


def check_agreement(implementation: Implementation, case: Case, engine: Engine) -> int:
    """The engine's results equal the interpreter's, bit for bit on exact data; returns the data sets compared.

    Where a gradient exists, tangents and gradients are compared as well. Data that is not exact is
    compared forward only, within twice the bound of a rounded sum, one for each engine.

    Raises:
        Broken: if they differ.
        WrongResult: if the result has another tree, shape or dtype than it should.
    """
    ours = ready("value", implementation, case, engine)
    theirs = ready("value", implementation, case, REFERENCE)
    check_results(case, ours.seen)
    sets = [operands(case, data) for data in case.data]
    runs = zip(ours.prepared.each(sets), theirs.prepared.each(sets), strict=True)
    for data, right, both in zip(case.data, value_references(implementation, case, sets), runs, strict=True):
        for i, (got, expected) in enumerate(zip(*both, strict=True)):
            bound, blocks = right[i].bound, all_blocks(case, expected)
            actual = all_blocks(case, got)
            if bound is not None and blocks.shape == actual.shape:  # negative: either order may overflow
                overflows = (bound < 0) & ~np.isinf(right[i].exact)
                blocks = np.where(overflows & ~np.isfinite(blocks.astype(wide(blocks.dtype))), actual, blocks)
            compare(
                case,
                data,
                "result",
                f"result of {engine.name}",
                expected=blocks,
                actual=actual,
                bound=None if bound is None else 2 * bound,
                leaf=i,
            )
    if differentiable(case) and not CONTRACTS[case.contract].nonlinear:  # of which no gradient is exact
        # the values agree, and a function without reverse mode has no gradients that could differ
        with suppress(NotImplementedError):
            _check_gradients(implementation, case, engine)
    return len(case.data)


def differentiable(case: Case) -> bool:
    """Whether there is a gradient to compare."""
    contract = CONTRACTS[case.contract]
    floating = all(is_float(case.operands[i].numpy_dtype) for i in contract.moving(case))
    through = all(link.differentiable for link in case.links)
    return floating and contract.differentiable(case) and through


def _check_gradients(implementation: Implementation, case: Case, engine: Engine) -> None:
    ours = ready("reverse gradient", implementation, case, engine)
    theirs = ready("reverse gradient", implementation, case, REFERENCE)
    moving = CONTRACTS[case.contract].moving(case)
    for data in case.data:
        cts, primal = cotangents(case, ours, data), operands(case, data, pulled_terms(case))
        defined = data.kind != "nan" and derives_at(case, data)
        if not defined or not is_exact(case, primal, pulled_terms(case), cts):
            continue
        inputs = [*primal, *(primal[i] for i in moving), *cts]
        got, expected = (ran.prepared(inputs)[-len(moving) :] for ran in (ours, theirs))
        for i, left, right in zip(moving, got, expected, strict=True):
            compare(
                case,
                data,
                "gradient",
                f"gradient of {engine.name}",
                expected=case.blocks(i, np.asarray(right)),
                actual=case.blocks(i, np.asarray(left)),
                leaf=i,
            )
