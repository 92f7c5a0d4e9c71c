"""The law of types: what is typed invariant is equal on all devices, and the type decides about `out_specs`."""

from collections.abc import Iterable, Sequence

import numpy as np

from shardproof.oracles.layout import ReplicaMismatch, check_replicas
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts.numbers import operands
from shardproof.properties.engines import Engine
from shardproof.properties.engines.running import check_results, placed_blocks, ready
from shardproof.properties.laws.law import Law
from shardproof.properties.laws.value import check_relation
from shardproof.properties.precision.comparison import compare
from shardproof.properties.precision.judge import value_references
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import Broken, Difference


def declared_varying(implementation: Implementation, case: Case) -> list[frozenset[str]] | None:
    """The varying axes that each result must be typed with, if the implementation declares them."""
    if implementation.invariant is None:
        return None
    along = frozenset(case.axes)
    before = [operand.placement.axes for operand in case.operands]
    if not case.tree:  # all of them go into one result
        before = [frozenset[str]().union(*before)]
    return [axes - along if implementation.invariant else axes | along for axes in before]


def check_type(implementation: Implementation, case: Case, engine: Engine) -> int:
    """The result has its declared type, which is sound, and which alone decides what `out_specs` is accepted.

    Soundness is checked by running: a result typed invariant along an axis is bitwise equal on all
    devices along it. Returns the number of data sets checked.
    """
    program = ready("value", implementation, case, engine)
    check_results(case, program.seen)
    varying = program.seen.varying
    declared = declared_varying(implementation, case)
    if declared is not None and varying != declared:
        at = next(i for i, axes in enumerate(varying) if axes != declared[i])
        texts = [", ".join(sorted(map(str, axes))) or "nothing" for axes in (varying[at], declared[at])]
        name = case.contract.call.leaf(case, at)
        raise Broken("type", f"{name} is typed varying over {texts[0]}: expected {texts[1]}")
    check_replicated(case, varying, map(program.prepared, [operands(case, data) for data in case.data]))
    if case.out is not None:
        _check_acceptance(implementation, case, engine, varying)
    return len(case.data)


def check_replicated(case: Case, varying: Sequence[frozenset[str]], runs: Iterable[Sequence[np.ndarray]]) -> None:
    """Raises Broken unless results are equal, bit for bit, along axes that they are typed invariant along."""
    for data, results in zip(case.data, runs, strict=True):
        for blocks, axes in zip(results, varying, strict=True):
            try:
                check_replicas(blocks, case.mesh, axes)
            except ReplicaMismatch as error:
                invariant = [n for n in case.mesh.axis_names if n not in axes]
                first = blocks[tuple(slice(None) if n in axes else slice(1) for n in case.mesh.axis_names)]
                raise Broken(
                    "replicas",
                    f"typed invariant along {', '.join(invariant)}, but {error}",
                    data=data,
                    difference=Difference.between("replica", "replica", np.broadcast_to(first, blocks.shape), blocks),
                ) from error


def _check_acceptance(
    implementation: Implementation, case: Case, engine: Engine, varying: list[frozenset[str]]
) -> None:
    assert case.out is not None
    out = case.out
    sound = all(axes <= placed.axes for axes, placed in zip(varying, out, strict=True))
    refusal: Exception | None = None
    try:
        ready("placed", implementation, case, engine)
    except ValueError as error:
        if "out_specs" not in str(error):
            raise
        refusal = error
    if sound == (refusal is not None):
        verdict = "accepted" if refusal is None else "refused"
        at = next((i for i, axes in enumerate(varying) if not axes <= out[i].axes), 0)
        axes = ", ".join(sorted(varying[at])) or "nothing"
        raise Broken("out_specs", f"out_specs {out[at].partition()} {verdict} for a result varying over {axes}")
    if refusal is not None:
        return
    data = next((data for data in case.data if data.kind == "exact"), case.data[0])  # bit for bit, unless declined
    arrays = operands(case, data)
    results = ready("placed", implementation, case, engine).prepared(arrays)
    if case.contract.oracle.holds is not None:
        placed_ones = [placed_blocks(case, np.asarray(y), p) for y, p in zip(results, out, strict=True)]
        check_relation(case, data, arrays, placed_ones, " under out_specs")
        return
    (right,) = value_references(implementation, case, [arrays])
    for i, (reference, result, placed) in enumerate(zip(right, results, out, strict=True)):
        what = f"{case.contract.call.leaf(case, i)} under out_specs {placed.partition()}"
        blocks = placed_blocks(case, np.asarray(result), placed)
        compare(case, data, "array", what, actual=blocks, right=reference, leaf=i)


TYPE = Law(
    "type",
    "A result typed invariant is equal everywhere, and `out_specs` is accepted just when the type allows it.",
    check_type,
    lambda case: None if case.forbidden or case.chain else case,  # with its `out`, unlike `without_chain`
    lambda implementation, engine: implementation.check_vma,
    engines=("simulate",),  # the law of agreement looks at replicas of compiled programs
)
