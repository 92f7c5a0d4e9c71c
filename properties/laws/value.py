"""The laws of values, types and errors: what every device holds, what is typed invariant, and what raises."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from shardproof.oracles.layout import ReplicaMismatch, check_replicas
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts import Violation
from shardproof.properties.contracts.numbers import operands
from shardproof.properties.engines import Engine
from shardproof.properties.engines.running import all_blocks, check_results, placed_blocks, ready, traced
from shardproof.properties.engines.simulate.errors import location
from shardproof.properties.laws.law import Law, call_alone, checked_sets, whole_case
from shardproof.properties.precision.comparison import compare
from shardproof.properties.precision.judge import check_mathematics, value_references
from shardproof.properties.precision.runs import Runs, rounded_sums
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import Seen, WrongResult, forward
from shardproof.properties.programs.violation import Broken, Difference


def check_value(implementation: Implementation, case: Case, engine: Engine) -> int:
    """Every block of every data set equals the oracle's, of what is no sum of products in double precision as well.

    Returns how many data sets were checked.

    Raises:
        Broken: if one does not.
        WrongResult: if the result has another tree than it should.
        NotRun: if no data set tells right from wrong.
    """
    program = ready("value", implementation, case, engine)
    told, undecided = [], 0
    sets = [operands(case, data) for data in case.data]
    rights, runs = value_references(implementation, case, sets), program.prepared.each(sets)
    for data, right, results in zip(case.data, rights, runs, strict=True):
        for i, result in enumerate(results):
            what = case.contract.call.leaf(case, i)
            compare(case, data, "result", what, actual=all_blocks(case, result), right=right[i], leaf=i)
            check_mathematics(case, data, "result", what, right[i], leaf=i)
        told.append(any(reference.tells for reference in right))
        undecided += sum(int(reference.undecided.sum()) for reference in right)
    return checked_sets(told, case, undecided, [*lines_of_rounded_sums(implementation, case)])


def lines_of_rounded_sums(implementation: Implementation, case: Case) -> Iterator[str]:
    """The lines where a user's program rounds a part of a sum before it is sent, unless its accumulator is stated."""
    if implementation.program is None or implementation.accumulator:
        return
    for equation, sent in rounded_sums(Runs("value", implementation, case, []).program.closed_jaxpr):
        if sent:
            dtype, line = equation.outvars[0].aval.dtype, location(equation)
            yield f"a part of a sum is rounded to {dtype} before it is sent, at {line}: that error grows with the mesh"


def on_values(case: Case) -> Case | None:
    """A valid case; two of its data sets where nothing is under `jit`, so that every primitive is compiled in turn."""
    asked = whole_case(case)
    slow = asked is not None and not all(link.compiled for link in asked.links)
    return dataclasses.replace(asked, data=asked.data[:2]) if asked is not None and slow else asked


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


def check_type(implementation: Implementation, case: Case, engine: Engine) -> int:
    """The result has its declared type, which is sound, and which alone decides what `out_specs` is accepted.

    Soundness is checked by running: a result typed invariant along an axis is bitwise equal on all
    devices along it. Returns the number of data sets checked.

    Raises:
        Broken: if one does not hold.
        WrongResult: if the result has another tree, shape or dtype than it should.
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
    check_replicated(case, varying, program.prepared.each([operands(case, data) for data in case.data]))
    if case.out is not None:
        _check_acceptance(implementation, case, engine, varying)
    return len(case.data)


def check_replicated(case: Case, varying: Sequence[frozenset[str]], runs: Iterable[Sequence[np.ndarray]]) -> None:
    """Results on each data set are bitwise equal on all devices along which they are typed invariant.

    Raises:
        Broken: if they are not.
    """
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
    data = Data("exact", case.data[0].seed)
    arrays = operands(case, data)
    (right,) = value_references(implementation, case, [arrays])
    results = ready("placed", implementation, case, engine).prepared(arrays)
    for i, (reference, result, placed) in enumerate(zip(right, results, out, strict=True)):
        what = f"{case.contract.call.leaf(case, i)} under out_specs {placed.partition()}"
        blocks = placed_blocks(case, np.asarray(result), placed)
        compare(case, data, "array", what, actual=blocks, right=reference, leaf=i)


def with_its_layout(case: Case) -> Case | None:
    """The call of a valid case alone, with the layout that was drawn for its results."""
    alone = call_alone(case)
    return None if alone is None else dataclasses.replace(alone, out=case.out)


TYPE = Law(
    "type",
    "A result typed invariant is equal everywhere, and `out_specs` is accepted just when the type allows it.",
    check_type,
    with_its_layout,
    lambda implementation, engine: implementation.check_vma,
    engines=("simulate",),  # what compilers make of replicas the law of agreement looks at
)


def check_error(implementation: Implementation, case: Case, engine: Engine) -> int:
    """A forbidden argument raises before anything runs; the message names it, its value and the mesh.

    Only that *something* is raised is asked of implementations that do not promise explained errors. A
    NotImplementedError refuses nothing: it says that the case is not supported.

    Raises:
        Broken: if nothing is raised, or the message lacks something.
        NotImplementedError: if the implementation raises it.
    """
    argument = case.forbidden
    value = _value(case, argument)
    try:
        traced(forward(case, implementation, Seen()), case, engine)
    except NotImplementedError:
        raise
    except WrongResult:  # it accepts the argument, and returns what it should not
        pass
    except Exception as error:
        if "explained_errors" in implementation.features:
            _check_message(case, argument, value, error)
        return 1
    raise Broken("accepted", f"{argument}={value} is accepted: expected an error")


def _value(case: Case, argument: str) -> str:
    if argument == "axis_name":
        return repr(case.axis_name)
    return repr(case.keywords[argument]) if argument in case.keywords else ""


def _check_message(case: Case, argument: str, value: str, error: Exception) -> None:
    text = str(error)
    mesh = "(" + ", ".join(f"{name}={size}" for name, size in case.mesh.shape.items()) + ")"
    plain = value.replace("(", "[").replace(")", "]").replace(",]", "]")
    readings = {value, plain}
    shown = any(
        reading in text.replace("(", "[").replace(")", "]").replace(",]", "]") or reading in text
        for reading in readings
    )
    missing = [
        what
        for what, there in (
            (f"the argument {argument!r}", f"{argument}=" in text),
            (f"its value {value}", shown),
            (f"the mesh {mesh}", mesh in text),
        )
        if not there
    ]
    if missing:
        raise Broken(
            "message",
            f"{type(error).__name__} does not name {' and '.join(missing)}: {text.partition(chr(10))[0]}",
        ) from error


def refused_by(implementation: Implementation) -> list[Violation]:
    """What an implementation must refuse."""
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
