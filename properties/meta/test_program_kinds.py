"""Programs of unusual kinds: pipelines, sums in a narrow dtype, and functions that end rather than answer."""

import contextlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from shardproof.properties.contracts import Scope
from shardproof.properties.contracts.described import Array
from shardproof.properties.engines import engine_named
from shardproof.properties.laws import LAWS
from shardproof.properties.meta.brief import marked
from shardproof.properties.meta.runs import python
from shardproof.properties.report.checking import check_program, engines_for
from shardproof.properties.report.program_tests import program_test
from shardproof.properties.runner.programs import Program
from shardproof.properties.runner.search import find_violation


def last_stage(x: Any, w: Any, *, stage: Any) -> Any:
    """A pipeline whose last stage has the result, and the others what they passed on."""
    p = lax.axis_size(stage)
    for i in range(p):
        y = jnp.tanh(x @ w[0])
        x = y if i == p - 1 else lax.ppermute(y, stage, [(j, (j + 1) % p) for j in range(p)])
    return x, 2 * x


def whole_stages(x: Any, w: Any) -> Any:
    """All layers in their order."""
    for layer in w:
        x = np.tanh(x @ layer)
    return x, 2 * x


PIPELINE: dict[str, Any] = {
    "arguments": ("b k", "@stage k k"),
    "one_axis": ["stage"],
    "dtypes": ["float32"],
    "most_devices": 16,
}


@pytest.mark.lengthy
@pytest.mark.parametrize("count", [5, 8])
def test_a_program_may_have_more_roles_than_a_mesh_has_axes(count: int) -> None:
    """A program with more roles than a mesh has axes is checked with each role in turn on a longer axis."""
    names = [f"role{i}" for i in range(count)]

    def over(names: list[str], axes: dict[str, Any]) -> tuple[str, ...]:
        return tuple(axis for name in names for axis in np.atleast_1d(axes[name]).tolist())

    def total(x: Any, **axes: Any) -> Any:
        return lax.psum(x.sum(), over(names, axes))

    def all_but_the_last(x: Any, **axes: Any) -> Any:
        return lax.pmax(lax.psum(x.sum(), over(names[:-1], axes)), over(names[-1:], axes))

    described: Any = {"arguments": (" ".join(f"d{i}@{name}" for i, name in enumerate(names)),), "results": ""}
    summary = check_program(total, lambda x: x.sum(), **described, laws="value", max_examples=32)
    assert {tally.outcome for tally in summary.tallies} == {"passed"}
    assert max(tally.largest for tally in summary.tallies) > 16
    with pytest.raises(AssertionError, match=rf"all_but_the_last: value: mesh .*{names[-1]}="):
        check_program(all_but_the_last, lambda x: x.sum(), **described, laws="value", max_examples=200)


@pytest.mark.lengthy
def test_a_result_of_one_participant_is_compared_there_alone() -> None:
    """A result with `only` is compared on that participant alone, in every law and in the script."""
    last, all_of_them = Array("b k", only={"stage": -1}), "b k"
    laws = ["value", "gradient", "type", "agreement"]
    right = check_program(last_stage, whole_stages, **PIPELINE, results=(last, last), laws=laws, max_examples=24)
    assert {tally.outcome for tally in right.tallies} == {"passed"}
    assert any("=2" in mesh for tally in right.tallies for mesh in tally.meshes)
    for results in ((last, all_of_them), (Array("b k", only={"stage": 0}), last)):
        with pytest.raises(
            AssertionError, match=r"last_stage: value: mesh \(dp=2\), stage='dp': .*1 of 2 blocks"
        ) as raised:
            check_program(last_stage, whole_stages, **PIPELINE, results=results, laws="value", max_examples=40)
        (script,) = re.findall(r"\n  python (\S+\.py)", str(raised.value))
        ended = python(script)
        assert (ended.returncode, "result" in ended.stdout) == (1, True), ended.stderr
    for described, message in (
        ({"results": (Array("b k", only={"data": 0}), last)}, "only: 'data': expected some of stage"),
        ({"arguments": (Array("b k", only={"stage": 0}), "@stage k k")}, "only: expected of results alone"),
        ({"whole": True}, "only, whole=True: a function of global arrays returns all of a result"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            check_program(last_stage, whole_stages, **{**PIPELINE, "results": (last, last), **described})
    with pytest.raises(ValueError, match="expected roles that do not shard it"):
        Array("b@data", only={"data": 0})


@jax.custom_vjp
def half_as_steep(x: Any, w: Any) -> Any:
    """A product with half of its derivative by the right operand."""
    return x @ w


half_as_steep.defvjp(lambda x, w: (x @ w, (x, w)), lambda kept, ct: (ct @ kept[1].T, kept[0].T @ ct / 2))


def added_up_to_the_last(x: Any, w: Any, *, model: Any) -> Any:
    """A product whose parts are added up, and the operand as it was."""
    return jnp.tanh(lax.psum(x @ w, model)), x


@pytest.mark.lengthy
def test_gradients_with_unchecked_types_are_asked_for() -> None:
    """Gradients with unchecked types are checked only with `gradients=True`."""
    described: Any = {"arguments": ("n k@model", "k@model m"), "results": ("n m", "n k@model"), "check_vma": False}
    laws = ["gradient", "agreement"]
    summary = check_program(
        added_up_to_the_last, lambda x, w: (np.tanh(x @ w), x), **described, gradients=True, laws=laws, max_examples=40
    )
    assert {tally.law for tally in summary.tallies} == {*laws}
    assert {tally.outcome for tally in summary.tallies} == {"passed"}
    assert any(tally.drawn["transformations"].keys() != {"none"} for tally in summary.tallies)
    assert "no types are checked" in str(summary)
    assert "no gradients" not in str(summary)

    def wrong(x: Any, w: Any, *, data: Any) -> Any:
        return half_as_steep(x, w)

    described = {"arguments": ("n@data k", "k m"), "results": "n@data m", "check_vma": False, "max_examples": 40}
    summary = check_program(wrong, lambda x, w: x @ w, **described, laws="value")
    assert "and no gradients" in str(summary)
    with pytest.raises(AssertionError, match=r"wrong: gradient: mesh \(dp=1\).*of w: 1 of 1 blocks") as raised:
        check_program(wrong, lambda x, w: x @ w, **described, gradients=True, laws="gradient")
    (script,) = re.findall(r"\n  python (\S+\.py)", str(raised.value))
    ended = python(script)
    assert (ended.returncode, "gradient" in ended.stdout) == (1, True), ended.stderr


@pytest.mark.lengthy
def test_what_is_said_to_have_no_gradient_is_not_differentiated() -> None:
    """An argument with `gradient=False` is not differentiated, and the others are."""

    def steep(x: Any, w: Any, *, data: Any) -> Any:
        return half_as_steep(x[0], w[0])[None]

    described: Any = {"results": "@data n m", "laws": "gradient", "max_examples": 40}
    for last, wrong in ((Array("@data k m", gradient=False), False), ("@data k m", True)):
        with pytest.raises(AssertionError, match="of w: ") if wrong else contextlib.nullcontext():
            check_program(steep, lambda x, w: x @ w, arguments=("@data n k", last), **described)


def around_the_ring(x: Any, *, data: Any) -> Any:
    """A sum, in as many steps as there are participants."""
    p = lax.axis_size(data)
    total = block = x
    for _ in range(p - 1):
        block = lax.ppermute(block, data, [(i, (i + 1) % p) for i in range(p)])
        total = total + block
    return total


def sent_round_and_round(block: Any, *, data: Any) -> Any:
    """The mean of all blocks, which are added up again and again: hundreds of operations for every participant."""
    p = lax.axis_size(data)
    total = 0 * block
    for _ in range(40):
        total = total + around_the_ring(block, data=data)
    return total / (40 * p)


@pytest.mark.lengthy
def test_what_is_left_out_on_large_meshes_is_reported() -> None:
    """Meshes too large to interpret are left out, which is reported as a finding; there is no other."""
    described: Any = {"arguments": ("@data n",), "results": "@data n", "one_axis": ["data"], "dtypes": "float32"}
    program = Program(sent_round_and_round, lambda x: np.broadcast_to(x.mean(0), x.shape), **described)
    for asked, left_out in ((1024, True), (64, True), (32, False)):
        scope = Scope(large=asked)
        found = find_violation(
            [LAWS["value"]], program.implementation, engine_named("simulate"), scope, max_examples=36, random_seed=0
        )
        assert found.violation is None
        assert 16 < found.tally.largest <= 32
        text = "its steps grow with the mesh: none of more than 32 devices was interpreted"
        assert found.tally.findings == ({text: f"a mesh of {asked:,}"} if left_out else {})


def test_what_a_compiler_sends_is_checked_where_it_is_seen() -> None:
    """Communication of a function of global arrays is checked on the compiled program alone."""
    described: Any = {"arguments": ("n@data k",), "results": "k", "whole": True}
    program = Program(lambda x, *, mesh, data: x.mean(0), lambda x: x.mean(0), **described)
    checks = vars(program_test(program, laws="communication"))["pytestmark"]
    assert [param.id for mark in checks for param in mark.args[1]] == ["xla"]
    assert engines_for(program.implementation, [LAWS["communication"]]) == ["xla"]
    laws = ("value", "communication")
    summary = check_program(program.function, program.reference, **described, laws=laws, max_examples=8)
    assert {tally.engine for tally in summary.tallies if tally.law == "communication"} == {"xla"}


STEPS: dict[str, tuple[Any, Any, tuple[Any, ...], str, dict[str, Any]]] = {
    "cumsum": (
        lambda x, *, data: jnp.cumsum(x, 1), lambda x: np.cumsum(x, 1), ("n@data k",), "n@data k", {"k": (16, 64)},
    ),
    "segments": (
        lambda x, i, *, data: lax.psum(jax.ops.segment_sum(x, i, 4), data),
        lambda x, i: jax.ops.segment_sum(x, i, 4),
        ("n@data d", Array("n@data", "int32", below=4)),
        "4 d",
        {"n": (64, 128)},
    ),
    "reduce": (
        lambda x, *, data: lax.psum(lax.reduce(x, jnp.bfloat16(0), lax.add, (0,)), data),
        lambda x: x.sum(0), ("n@data k",), "k", {"n": (64, 128)},
    ),
}  # fmt: skip


@pytest.mark.lengthy
@pytest.mark.parametrize("name", STEPS)
def test_sums_in_a_narrow_dtype_are_charged_step_by_step(name: str) -> None:
    """Sums in bfloat16 are allowed the rounding of every step, as XLA:CPU has it."""
    function, reference, arguments, results, sizes = STEPS[name]
    described: Any = {"arguments": arguments, "results": results, "sizes": sizes, "dtypes": ["bfloat16"]}
    summary = check_program(function, reference, **described, laws="value", max_examples=40)
    assert "passed" in {tally.outcome for tally in summary.tallies}


@jax.tree_util.register_dataclass
@dataclass
class Layer:
    """Weights, as a tree of a registered class."""

    weights: Any
    bias: Any = None


class Momentum(NamedTuple):
    """The state of an optimiser."""

    count: Any
    mean: Any


def momentum_step(layer: Layer, state: Momentum, x: Any, *, data: Any) -> tuple[Layer, Momentum]:
    """Weights and state after a step along the mean of all rows."""
    return next_layer(layer, state, lax.pmean(x.mean(0), data))


def whole_step(layer: Layer, state: Momentum, x: Any) -> tuple[Layer, Momentum]:
    """The same on whole arrays."""
    return next_layer(layer, state, x.mean(0))


def next_layer(layer: Layer, state: Momentum, row: Any) -> tuple[Layer, Momentum]:
    """Weights and state after a step along a row."""
    mean = Layer(state.mean.weights / 2 + row)
    return Layer(layer.weights - mean.weights), Momentum(state.count + 1, mean)


def step_of_one(layer: Layer, state: Momentum, x: Any, *, data: Any) -> tuple[Layer, Momentum]:
    """A step along the mean of the rows of each participant, summed."""
    return next_layer(layer, state, lax.psum(x.mean(0), data))


def test_arguments_and_results_are_trees_of_classes() -> None:
    """Named tuples and registered dataclasses describe arguments and results, and the script has them."""
    after = (Layer("k"), Momentum(Array("", "int32"), Layer("k")))
    described: Any = {"arguments": (*after, "n@data k"), "results": after, "dtypes": "float32", "max_examples": 8}
    summary = check_program(momentum_step, whole_step, **described, laws=["value", "gradient"])
    assert {tally.outcome for tally in summary.tallies} == {"passed"}
    with pytest.raises(AssertionError, match=r"step_of_one: value: mesh \(dp=2\), .*: result\[0\]\.weights") as raised:
        check_program(step_of_one, whole_step, **described | {"max_examples": 40}, laws="value")
    (script,) = re.findall(r"\n  python (\S+\.py)", str(raised.value))
    ended = python(script)
    assert (ended.returncode, "result" in ended.stdout) == (1, True), ended.stderr
    with pytest.raises(ValueError, match=r"the reference returns \*: expected \(CustomNode\(Layer.*, as res"):
        check_program(momentum_step, lambda layer, state, x: x, **described)


class Unreadable(Exception):
    """An exception without a text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


ENDS: dict[str, tuple[Callable[[], Any], str]] = {
    "exit": (lambda: sys.exit(3), "raises SystemExit: 3: expected an array"),
    "exit of pytest": (lambda: pytest.exit("enough"), "raises Exit: enough"),
    "unreadable": (lambda: _raises(Unreadable()), "raises Unreadable, whose text cannot be read: expected an array"),
}


def _raises(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("name", marked(ENDS, ["exit", "unreadable"]))
def test_a_function_that_would_end_the_test_is_wrong(name: str) -> None:
    """An exit, a skip or an unreadable exception of a function is reported, and neither ends nor skips the run."""
    end, text = ENDS[name]

    def ends(x: Any, *, data: Any) -> Any:
        return end()

    @jax.custom_vjp
    def ends_backwards(x: Any) -> Any:
        return x * 2

    ends_backwards.defvjp(lambda x: (x * 2, None), lambda kept, ct: end())

    def later(x: Any, *, data: Any) -> Any:
        return ends_backwards(x)

    described: Any = {"arguments": ("n@data",), "results": "n@data", "dtypes": "float32", "max_examples": 8}
    for function, law in ((ends, "value"), (later, "gradient")):
        with pytest.raises(AssertionError, match=rf"{function.__name__}: {law}: .* {re.escape(text)}"):
            check_program(function, lambda x: x * 2, **described, laws=law)


def constrained(x: Any, w: Any, *, mesh: Any, data: Any) -> Any:
    """A product of which the compiler adds up the parts."""
    return lax.with_sharding_constraint(x @ w, NamedSharding(mesh, PartitionSpec()))


def test_what_a_compiler_sends_is_asked_of_the_compiler() -> None:
    """Statements about collectives that are in no program are compared with the compiled program alone."""
    described: Any = {"arguments": ("m k@data", "k@data n"), "results": "m n", "whole": True, "max_examples": 6}
    right = check_program(constrained, np.matmul, **described, laws="communication", communication="all_reduce=1")
    assert {tally.outcome for tally in right.tallies} == {"passed"}
    text = r"1 all_reduce of .* in the compiled program: expected all_gather=1"
    with pytest.raises(AssertionError, match=text) as raised:
        check_program(constrained, np.matmul, **described, laws="communication", communication="all_gather=1")
    assert "simulate" not in str(raised.value).partition("\nlaw ")[0]


def heads_merged(q: Any, w: Any, *, model: Any) -> Any:
    """Heads in one dimension, multiplied with the rows that belong to them."""
    return lax.psum(q.reshape(len(q), -1) @ w, model), q.reshape(len(q), -1)


def test_a_dimension_is_a_product_or_a_sum_of_sizes() -> None:
    """The first size of a product is shared where the product is; each has to be a dimension of an argument."""
    arguments, results = ("b heads@model size", "heads*size@model m"), ("b m", "b heads*size@model")
    how: Any = {"dtypes": "float32", "laws": "value", "max_examples": 8}

    def reference(q: Any, w: Any) -> Any:
        return q.reshape(len(q), -1) @ w, q.reshape(len(q), -1)

    summary = check_program(heads_merged, reference, arguments=arguments, results=results, **how)
    assert {tally.outcome for tally in summary.tallies} == {"passed"}

    def joined(x: Any, y: Any, *, data: Any) -> Any:
        return jnp.concatenate([x, y, x], 1)

    both: Any = {"arguments": ("b@data n", "b@data m"), "results": "b@data 2*n+m"}
    summary = check_program(joined, lambda x, y: np.concatenate([x, y, x], 1), **both, **how)
    assert {tally.outcome for tally in summary.tallies} == {"passed"}
    with pytest.raises(
        ValueError, match=r"q: 'b k\*size@model': k\*size: expected 'k' to be a dimension of an argument"
    ):
        Program(heads_merged, reference, arguments=("b k*size@model", "size m"), results=results)
    with pytest.raises(ValueError, match=r"result: the reference returns shape .*: expected .*, 'b@data n'"):
        check_program(joined, lambda x, y: np.concatenate([x, y], 1), **both | {"results": "b@data n"}, **how)


def test_kinds_of_data_are_declined() -> None:
    """A program may be run on one kind of data alone, which the summary tells; others are none of programs."""

    def inverse(x: Any, *, data: Any) -> Any:
        return jnp.where(x == 0, 7, 1 / x)

    described: Any = {"arguments": ("n@data",), "results": "n@data", "laws": "value", "max_examples": 20}
    with pytest.raises(AssertionError, match="inverse: value"):
        check_program(inverse, lambda x: 1 / x, **described)
    summary = check_program(inverse, lambda x: 1 / x, **described, data="real")
    assert "stated, so nothing else was drawn: inverse: data: real, and not exact" in str(summary)
    with pytest.raises(ValueError, match="data='nan': expected some of exact, real, which programs have"):
        check_program(inverse, lambda x: 1 / x, **described, data="nan")


def around_a_branch(x: Any, *, data: Any) -> Any:
    """Neighbours with an odd number behind them change places."""
    p, me = lax.axis_size(data), lax.axis_index(data)
    other = lax.ppermute(x, data, [(i, i ^ 1) for i in range(p) if i ^ 1 < p])
    return jnp.where((me ^ 1 < p) & (x.sum() > other.sum())[None], other, x)


def test_a_reference_whose_loop_may_be_empty_is_numpys() -> None:
    """A reference that JAX traces for one row alone, where its loop is empty, is called with arrays of NumPy."""

    def reference(x: Any) -> Any:
        x = np.array(x) if isinstance(x, np.ndarray) else x
        for i in range(0, len(x) - 1, 2):
            if x[i].sum() > x[i + 1].sum():
                x[[i, i + 1]] = x[[i + 1, i]]
        return x

    described: Any = {"arguments": ("@data k",), "results": "@data k", "one_axis": ["data"], "dtypes": "float32"}
    with pytest.raises(AssertionError, match=r"around_a_branch: value: mesh \(dp=2\).* blocks? wrong"):
        check_program(around_a_branch, reference, **described, laws="value", max_examples=16)
