"""Operations that are right with layouts on all supported versions of JAX stay right, and are typed by the rules."""

from collections.abc import Iterator

import jax
import pytest

from shardproof.properties.conformance import running, types
from shardproof.properties.conformance.program import Program
from shardproof.properties.conformance.programs import programs
from shardproof.properties.conformance.workers import Workers
from shardproof.properties.known_defects import DEFECTS

RIGHT = (
    *("neg", "abs", "add", "mul", "max", "lt", "select_n", "convert_element_type", "iota", "transpose", "expand_dims"),
    *(
        "squeeze",
        "broadcast_in_dim",
        "stack",
        "rev",
        "concatenate",
        "split",
        "reduce_sum",
        "reduce_max",
        "argmax",
    ),
    *("cumsum", "sort", "matmul", "one_hot", "tile", "moveaxis", "reduce_window_sum"),
)
"""Operations of which no defect is known."""


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    """A process that runs programs."""
    made = Workers(1)
    yield made
    made.close()


@pytest.mark.parametrize("axes", ["auto", "explicit"])
def test_operations_with_layouts(axes: str, workers: Workers) -> None:
    """Values, shapes and layouts are right, or the layout is refused."""
    drawn = [one for i, name in enumerate(RIGHT) for one in programs([name], axes, 1, 3, i)]
    found = [(one.operations, verdict) for one, verdict in workers.run(drawn) if verdict.kind in ("wrong", "fails")]
    assert not found


def expected(program: Program) -> object:
    """The layout that the result is typed with, or the refusal; None if no rule is known."""
    try:
        right = types.expected(program)
    except types.Refused as refused:
        return refused
    return None if right is None else types.plain(right)


def traced(program: Program) -> object:
    """The layout that JAX types the result with, or what it raises."""
    try:
        found = running.trace_program(program, running.make_inputs(program)).closed.out_avals[0]
    except Exception as error:
        return error
    return types.plain(found.sharding.spec)


def agree(right: object, found: object) -> bool:
    """True if JAX types a result by the rules, or refuses what they refuse and names the remedy."""
    if not isinstance(right, types.Refused):
        return found == right
    named = "out_sharding" in str(found) or not isinstance(right, types.Ambiguous)
    return type(found).__name__ == "ShardingTypeError" and named  # it has no public name


def excused(program: Program, found: object) -> bool:
    """True if a known defect of JAX, or its stricter rule of batch dimensions, explains the outcome."""
    (step,) = program.steps
    if step.op == "dot_general":
        specs = [[one.spec[i] for i in dims] for one, dims in zip(program.inputs, step.params["batch"], strict=True)]
        stricter = "batch dimensions to have the same sharding" in str(found)
        return specs[0] != specs[1] and (stricter or DEFECTS["dot_general_batch_type"].in_version(jax.__version__))
    defect = "reshape_to_ones" if isinstance(found, IndexError) else "reshape_beside_ones"
    ones = 1 in (*program.inputs[0].shape, *step.results[0].shape)
    return ones and isinstance(found, Exception) and DEFECTS[defect].in_version(jax.__version__)


TYPED = ("add", "broadcasted", "reduce_sum", "transpose", "dot_general", "reshape", "merge", "unmerge", "constrain")


def mistyped(name: str, count: int) -> list[Program]:
    """The drawn programs of an operation on explicit axes whose type is not the one that follows."""
    drawn = [(one, expected(one)) for one in programs([name], "explicit", 1, count, 7, plain=True)]
    pairs = [(one, right, traced(one)) for one, right in drawn if right is not None]
    return [one for one, right, found in pairs if not agree(right, found) and not excused(one, found)]


@pytest.mark.parametrize("name", TYPED)
def test_a_result_on_explicit_axes_is_typed(name: str) -> None:
    """Its type follows from those of the operands; where none does, or more than one, JAX refuses the operation."""
    assert not mistyped(name, 30)


@pytest.mark.parametrize(
    ("name", "rule", "wrong"),
    [
        ("unmerge", "_split", lambda entry, sizes, mesh: [None] * (len(sizes) - 1) + [entry]),
        ("dot_general", "_product", lambda left, right, contracted, batch: [None]),
        ("broadcasted", "_agreed", lambda entries: entries[0]),
    ],
)
def test_a_wrong_rule_is_found(name: str, rule: str, wrong: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule is compared with enough programs to see that it is wrong."""
    monkeypatch.setattr(types, rule, wrong)
    assert mistyped(name, 30)
