"""The law of values: the implementation's blocks equal the oracle's, on every device."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from shardproof.oracles.layout import ReplicaMismatch, check_replicas
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts.numbers import operands
from shardproof.properties.engines import Engine, Sets
from shardproof.properties.engines.running import Ready, all_blocks, check_results, ready, shared, unrelated_over_batch
from shardproof.properties.engines.simulate.liveness import location_in
from shardproof.properties.laws.law import Checked, Law, checked_sets, whole_case
from shardproof.properties.precision.comparison import Reference, compare
from shardproof.properties.precision.judge import check_mathematics, value_references
from shardproof.properties.precision.runs import Runs, narrowed, rounded_sums
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import Broken


def check_value(implementation: Implementation, case: Case, engine: Engine) -> int:
    """Every block of every data set equals the oracle's, in double precision as well unless it is a sum of products.

    If results are right only up to a relation, that holds. Returns how many data sets were checked.
    """
    program = ready("value", implementation, case, engine)
    decided, undecided = [], 0
    sets = [operands(case, data) for data in case.data]
    if case.contract.oracle.holds is not None:
        refused: dict[str, bool] = {}
        for data, arrays, results in zip(case.data, sets, map(program.prepared, sets), strict=True):
            check_results(case, program.seen)  # without `jit` nothing is seen before it runs
            blocks = [all_blocks(case, result) for result in results]
            check_relation(case, data, arrays, blocks)
            refused = refused or refused_changes(case, arrays, blocks)
        return Checked(len(sets), **remarks(implementation, case, program), refused=refused)
    rights, runs = shared_references(implementation, case, sets), map(program.prepared, sets)
    differing: dict[str, None] = {}
    for data, right, results in zip(case.data, rights, runs, strict=True):
        for i, result in enumerate(results):
            what, blocks = case.contract.call.leaf(case, i), all_blocks(case, result)
            compare(case, data, "result", what, actual=blocks, right=right[i], leaf=i)
            check_mathematics(case, data, "result", what, right[i], leaf=i)
            if _replicas_differ(implementation, case, blocks, i):
                differing[
                    f"devices that hold the same part of {what} differ in bits, which drift apart in training"
                ] = None
        decided.append(any(reference.tells for reference in right))
        undecided += sum(int(reference.undecided.sum()) for reference in right)
    found = remarks(implementation, case, program)
    found["findings"] += differing
    return checked_sets(decided, case, undecided=undecided, **found)


def _replicas_differ(implementation: Implementation, case: Case, blocks: np.ndarray, leaf: int) -> bool:
    """True if devices that hold the same part of a result differ, of a program whose types nobody checks."""
    if implementation.check_vma or case.chain or case.contract.call.placed is None:
        return False
    try:
        check_replicas(blocks, case.mesh, case.contract.call.placed(case)[leaf].axes)
    except ReplicaMismatch:
        return True
    return False


def shared_references(implementation: Implementation, case: Case, sets: Sets) -> Iterator[list[Reference]]:
    """The oracle's results on all data sets of a case, and their bounds, made once for all laws."""
    return shared("value", implementation, case, value_references(implementation, case, sets))


def remarks(implementation: Implementation, case: Case, program: Ready) -> dict[str, Any]:
    """Findings on a function's lines, and the sides of choices that runs of it took; not of this project's own."""
    choices = program.prepared.choices
    wraps = choices.wraps if implementation.program is not None else ()  # an operation of JAX's is to wrap as that does
    findings = [*lines_that_round(implementation, case), *wraps]
    return {"findings": findings, "choices": {} if implementation.built_in else choices.sides}


def check_relation(
    case: Case, data: Data, arrays: Sequence[np.ndarray], results: Sequence[np.ndarray], where: str = ""
) -> None:
    """Raises Broken unless the contract's relation holds of the results, on each input of a batch."""
    for wrong in unrelated_over_batch(case, [case.blocks(i, array) for i, array in enumerate(arrays)], results):
        raise Broken("values", f"{wrong}{where}", data=data)


def refused_changes(case: Case, arrays: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> dict[str, bool]:
    """For each result, whether the relation fails once that result is changed, in the same way on all devices."""
    if case.chain:
        return {}
    found, inputs = {}, [case.blocks(i, array) for i, array in enumerate(arrays)]
    for i, y in enumerate(results):
        last = tuple(range(len(case.mesh.sizes), y.ndim))[-1:]
        others = [np.zeros_like(y), np.roll(y, 1, last), ~y if y.dtype == bool else y + np.ones((), y.dtype)]
        others += [] if y.dtype == bool else [y * np.array(100, y.dtype), y - y.max() - np.ones((), y.dtype)]
        others = [other for other in others if not np.array_equal(other, y)]
        with np.errstate(all="ignore"):
            if others:
                trees = ([*results[:i], other, *results[i + 1 :]] for other in others)
                found[case.contract.call.leaf(case, i)] = any(_refuses(case, inputs, tree) for tree in trees)
    return found


def _refuses(case: Case, inputs: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> bool:
    try:
        return any(unrelated_over_batch(case, inputs, results))
    except Exception:  # a predicate may raise anything of what it was not written for, such as an index that is none
        return True


def lines_that_round(implementation: Implementation, case: Case) -> Iterator[str]:
    """The lines where a user's program rounds a part of a sum over devices, or as its reference does not."""
    if implementation.program is None or case.chain:  # its own lines would be named
        return
    program = Runs("value", implementation, case, []).program.closed_jaxpr
    for equation, sent in rounded_sums(program):
        if sent:
            rounded = f"a part of a sum over devices is rounded to {equation.outvars[0].aval.dtype}"
            yield f"{rounded}, at {location_in(program, equation)}: that error may grow with the mesh"
    for equation in narrowed(program) if case.contract.oracle.holds is None else ():
        wide, dtype = equation.invars[0].aval.dtype, equation.outvars[0].aval.dtype
        if dtype not in case.contract.oracle.casts:
            where = f"{wide} is rounded to {dtype} at {location_in(program, equation)}"
            yield f"{where}; the reference, traced in double precision, has no such cast"


def on_values(case: Case) -> Case | None:
    """A valid case; two of its data sets if it is not under `jit`, so that every primitive is compiled in turn."""
    whole = whole_case(case)
    slow = whole is not None and not all(link.compiled for link in whole.links)
    return dataclasses.replace(whole, data=whole.data[:2]) if whole is not None and slow else whole


VALUE = Law("value", "Every device holds the block that the oracle says.", check_value, on_values, stands_alone=True)
