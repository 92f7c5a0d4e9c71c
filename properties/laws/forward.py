"""The laws of the forward pass: its values and its types, and what must be refused."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from shardproof.oracles.layout import ReplicaMismatch, check_replicas
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts import Violation
from shardproof.properties.contracts.numbers import operands
from shardproof.properties.engines import Engine, Sets
from shardproof.properties.engines.engine import Ready, all_blocks, check_results, placed_blocks, ready, shared, trace
from shardproof.properties.engines.simulate.jaxprs import location_in
from shardproof.properties.laws.law import Law, Verdict, held_on, whole_case
from shardproof.properties.precision.comparison import Reference, compare
from shardproof.properties.precision.judge import check_mathematics, value_references
from shardproof.properties.precision.runs import Runs, narrowed, rounded_sums
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import Seen, WrongResult, forward
from shardproof.properties.programs.transformations import unrelated_over_batch
from shardproof.properties.programs.violation import Broken, Difference


def check_value(implementation: Implementation, case: Case, engine: Engine) -> Verdict:
    """Every block of every data set equals the oracle's, in double precision as well unless it is a sum of products.

    If results are right only up to a relation, that holds.
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
        return Verdict("held", checked=len(sets), **remarks(implementation, case, program), refused=refused)
    rights, runs = shared_references(implementation, case, sets), map(program.prepared, sets)
    differing: dict[str, None] = {}
    for data, right, results in zip(case.data, rights, runs, strict=True):
        for i, result in enumerate(results):
            what, actual = case.contract.call.leaf(case, i), all_blocks(case, result)
            compare(case, data, "result", what, actual=actual, right=right[i], leaf=i)
            check_mathematics(case, data, "result", what, right[i], leaf=i)
            if _replicas_differ(implementation, case, actual, i):
                differing[f"devices that hold the same part of {what} differ in bits: updates drift apart"] = None
        decided.append(any(reference.tells for reference in right))
        undecided += sum(int(reference.undecided.sum()) for reference in right)
    found = remarks(implementation, case, program)
    found["findings"] += differing
    return held_on(decided, case, undecided=undecided, **found)


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
    return shared("value", case, value_references(implementation, case, sets))


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


def declared_varying(implementation: Implementation, case: Case) -> list[frozenset[str]] | None:
    """The varying axes that each result must be typed with, if the implementation declares them."""
    if implementation.invariant is None:
        return None
    along = frozenset(case.axes)
    before = [operand.placement.axes for operand in case.operands]
    if not case.tree:  # all of them go into one result
        before = [frozenset[str]().union(*before)]
    return [axes - along if implementation.invariant else axes | along for axes in before]


def check_type(implementation: Implementation, case: Case, engine: Engine) -> Verdict:
    """The result has its declared type, which is sound, and which alone decides what `out_specs` is accepted.

    Soundness is checked by running: a result typed invariant along an axis is bitwise equal on all devices along it.
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
    return Verdict("held", checked=len(case.data))


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


def check_error(implementation: Implementation, case: Case, engine: Engine) -> Verdict:
    """A forbidden argument raises before anything runs; the message names it, its value and the mesh.

    Implementations that do not claim explained errors only have to raise something. A NotImplementedError refuses
    nothing: it says that the case is not supported.
    """
    argument = case.forbidden
    values = {"axis_name": case.axis_name, **case.keywords}
    value = repr(values[argument]) if argument in values else ""
    try:
        trace(forward(case, implementation, Seen()), case.mesh)
    except NotImplementedError:
        raise
    except WrongResult:  # it accepts the argument, and returns what it should not
        pass
    except Exception as error:
        if "explained_errors" in implementation.features:
            _check_message(case, argument, value, error)
        return Verdict("held", checked=1)
    raise Broken("accepted", f"{argument}={value} is accepted: expected an error")


def _check_message(case: Case, argument: str, value: str, error: Exception) -> None:
    text = str(error)
    mesh = "(" + ", ".join(f"{name}={size}" for name, size in case.mesh.shape.items()) + ")"
    plain_value, plain_text = (x.replace("(", "[").replace(")", "]").replace(",]", "]") for x in (value, text))
    missing = [f"the argument {argument!r}"] if f"{argument}=" not in text else []
    missing += [f"its value {value}"] if plain_value not in plain_text else []
    missing += [f"the mesh {mesh}"] if mesh not in text else []
    if missing:
        lacks = f"{type(error).__name__} does not name {' and '.join(missing)}"
        raise Broken("message", f"{lacks}: {text.partition(chr(10))[0]}") from error


def refused_by(implementation: Implementation) -> list[Violation]:
    """The violations that an implementation must refuse."""
    features = implementation.features
    return [
        violation
        for violation in implementation.contract.violations
        if (violation.everyone or "explained_errors" in features)
        and (violation.argument != "axis_index_groups" or "groups" in features)
    ]


ERROR = Law(
    "error",
    "What the contract forbids raises before anything runs, and says which argument, value and mesh.",
    check_error,
    lambda case: case if case.forbidden else None,
    lambda implementation, engine: bool(refused_by(implementation)),
    engines=("simulate",),  # what must be refused is refused while tracing, before any engine
)
