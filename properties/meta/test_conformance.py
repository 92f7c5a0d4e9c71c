"""Programs with layouts: what is planted is found, what is drawn is valid, and what is shrunk stays wrong."""

import math
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import msgspec
import numpy as np
import pytest

from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.conformance import child, commands, exhaustive, known, report, running, workers
from shardproof.properties.conformance.exhaustive import Reached, enumerate_layouts, layouts
from shardproof.properties.conformance.operations import OPERATIONS, TEMPLATES
from shardproof.properties.conformance.program import INEXACT, Input, Output, Program, Step, Value, script
from shardproof.properties.conformance.programs import infer_results, programs
from shardproof.properties.conformance.running import Verdict
from shardproof.properties.conformance.search import Outcome, Search
from shardproof.properties.conformance.shrink import moves, shrink
from shardproof.properties.conformance.workers import Where, Worker, Workers
from shardproof.properties.known_defects import DEFECTS
from shardproof.properties.meta.planted_layouts import BUGS, Bug, Patched
from shardproof.properties.meta.runs import python

pytestmark = pytest.mark.untyped


def verdicts(drawn: Sequence[Program]) -> list[Verdict]:
    """The verdicts on programs, one after the other, in this process."""
    found: list[Verdict] = []
    for program in drawn:
        made = child.prepare(program)
        found.append(made if isinstance(made, Verdict) else child.judge([made])[0])
    return found


def plant(monkeypatch: pytest.MonkeyPatch, bug: Bug) -> None:
    """Lets programs with layouts call what is broken."""
    _, module, replaced, _ = bug
    right = running.make_scope

    def scope(program: Program, *, laid: bool) -> dict[str, Any]:
        names = right(program, laid=laid)
        return names | {module: Patched(names[module], replaced)} if laid else names

    monkeypatch.setattr(running, "make_scope", scope)


@pytest.mark.lengthy
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of the operation is not right with a bug planted."""
    operation, *_, axes = BUGS[name]
    drawn = programs([operation], axes, 1, 40, 1)
    plant(monkeypatch, BUGS[name])
    assert any(verdicts([program])[0].kind in ("wrong", "fails") for program in drawn)


def test_a_replica_that_is_not_updated_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """All shards are looked at, those that hold the same as well."""
    drawn = [one for one in programs(["neg"], "auto", 1, 30, 2) if one.outputs[0].spec == [None] and not one.derivative]
    right = running.run_pack

    def stale(pack: Sequence[running.Traced], *, quick: bool) -> list[list[jax.Array]]:
        (results,) = right(pack)
        (x,) = results
        parts = [shard.data for shard in x.addressable_shards]
        parts[-1] = jax.device_put(np.asarray(parts[-1]) + 1, parts[-1].sharding)
        return [[jax.make_array_from_single_device_arrays(x.shape, x.sharding, parts)]]

    assert [one.kind for one in verdicts(drawn[:1])] == ["right"]
    monkeypatch.setattr(running, "run_pack", stale)
    (found,) = verdicts(drawn[:1])
    assert found.kind == "wrong"
    assert f"on device {drawn[0].devices - 1}" in found.detail


@pytest.mark.parametrize("axes", ["auto", "explicit"])
def test_every_operation_is_drawn(axes: str) -> None:
    """There are programs of every operation, which JAX accepts without layouts, and which are data."""
    for name in OPERATIONS:
        drawn = programs([name], axes, 1, 2, 3)
        assert drawn, name
        for program in drawn:
            assert program.operations[-1] == name
            assert msgspec.json.decode(msgspec.json.encode(program), type=Program) == program


def test_longer_programs_are_valid() -> None:
    """A drawn program of several steps runs in the interpreter, or lacks a rule, and is made smaller at each step."""
    for program in programs([*OPERATIONS], "auto", 5, 8, 4):
        made = child.prepare(program)
        assert not isinstance(made, Verdict) or made.kind != "fails", made
        assert all(one.size() < program.size() for one, _ in zip(moves(program), range(20), strict=False))


def test_a_vmapped_program_runs_and_is_made_smaller() -> None:
    """A program that maps some of its inputs is right, and without that mapping it is a smaller program."""
    drawn = [one for one in programs(["neg", "add"], "auto", 2, 20, 6) if one.batch and not one.derivative]
    assert {verdict.kind for verdict in verdicts(drawn[:3])} == {"right"}
    assert not next(moves(drawn[0])).batch


def test_a_wrong_program_is_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of several steps with a bug in one of them ends as a program of that one, on one axis."""
    plant(monkeypatch, BUGS["each shard reversed"])
    drawn = [one for one in programs(["neg", "rev", "abs"], "auto", 3, 30, 5) if "rev" in one.operations]
    found = next((one, v) for one in drawn if len(one.steps) > 1 for v in verdicts([one]) if v.kind == "wrong")
    small = shrink(*found, verdicts, seconds=60)
    assert small.program.operations == ("rev",)
    assert len(small.program.mesh) == 1
    assert len(small.program.inputs) == 1


def test_an_abort_is_survived() -> None:
    """A process that ends is a verdict on the program that it ran, and the next is run by another."""
    worker = Worker(fast=True, where=Where(preload="shardproof.properties.meta.aborting"))
    drawn = [programs([name], "auto", 1, 1, 6)[0] for name in ("sign", "sort", "abs")]
    kinds = [(one.kind, one.detail[:6]) for one in worker.run(drawn)]
    worker.stop()
    worker.words.close()
    assert kinds == [("right", ""), ("fails", "aborts"), ("right", "")]


@pytest.mark.lengthy
def test_a_hang_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that waits is ended long before its time is over, which is a verdict on its program."""
    monkeypatch.setattr(workers, "ALONE_SECONDS", math.inf)
    worker = Worker(fast=True, where=Where(preload="shardproof.properties.meta.aborting"))
    (found,) = worker.run(programs(["rev"], "auto", 1, 1, 6))
    worker.words.close()
    assert (found.kind, found.detail) == ("fails", "hangs")


@pytest.mark.lengthy
def test_the_page_finds_what_a_backend_gets_wrong(tmp_path: Path) -> None:
    """The command of the page, with its module, prints what the page says and a script that shows it."""
    text = (Path(__file__).resolve().parents[2] / "docs/conformance.md").read_text(encoding="utf-8")
    section = text.partition("## Find what a backend gets wrong")[2].partition("\n## ")[0]
    blocks = re.findall(r"(?:^(?: {4}.*)?\n)+(?=\S)", section, re.MULTILINE)
    module, command, printed = (textwrap.dedent(block) for block in blocks if block.strip())
    (tmp_path / "mybackend.py").write_text(module)
    words = command.replace("--minutes 1", "--minutes 0.3").split()[1:]
    run = [sys.executable, "-c", "import sys; sys.path.remove(''); from shardproof.command import main; main()", *words]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(run, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert printed.strip().removesuffix(" …") in done.stdout
    paths = [tmp_path / line.removeprefix("python ") for line in done.stdout.splitlines() if line.startswith("python ")]
    (script,) = [path for path in paths if "lax.cumsum(x0, 0, reverse=True)\n" in path.read_text()]
    assert [python(script, folder=folder).returncode for folder in (tmp_path, tmp_path.parent)] == [1, 2]


def update(start: int) -> Program:
    """A program that updates a sharded dimension of four: behind its end, XLA drops that (`clamped_update`)."""
    inputs = Input("x0", (4,), "float32", [["a"]], "distinct"), Input("x1", (1,), "float32", [None], (9, 9))
    step = Step("dynamic_update_slice_constant", ("x0", "x1"), {"start": [start]}, (Value("y0", (4,), "float32"),))
    return Program({"a": 2}, "auto", inputs, (step,), (Output("y0", [["a"]]),))


def test_a_known_defect_is_excused_by_its_condition() -> None:
    """A program that meets a known defect is wrong as it is, and right with that operation replicated."""
    (wrong,) = verdicts([update(5)])
    assert (wrong.kind, wrong.known) == ("wrong", {"clamped_update": [0]})
    held = child.prepare(update(5), ["clamped_update"])
    assert isinstance(held, child.Ready)
    assert child.judge([held])[0] == Verdict("known", "clamped_update")


def test_conditions_are_of_known_defects() -> None:
    """Each sign is one of a defect that has a script."""
    assert {*known.SIGNS, *known.CASES} <= {*DEFECTS}


def test_arguments_that_a_failed_pack_donated_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The halves of a pack that fails as it runs have arguments of their own."""
    step, whole = Step("neg", ("x0",), {}, (Value("y0", (4,), "float32"),)), running.run_pack
    inputs = (Input("x0", (4,), "float32", [["a"]], "distinct"),)
    donating = Program({"a": 2}, "auto", inputs, (step,), (Output("y0", [["a"]]),), donated=True)
    packs: list[int] = []

    def fail_once(pack: Sequence[running.Traced], *, quick: bool) -> list[list[jax.Array]]:
        results = whole(pack, quick=quick)
        packs.append(len(pack))
        if len(packs) == 1:
            raise RuntimeError
        return results

    monkeypatch.setattr(running, "run_pack", fail_once)
    ready = [child.prepare(donating) for _ in range(2)]
    assert all(isinstance(one, child.Ready) for one in ready)
    assert [one.kind for one in child.judge(ready)] == ["right", "right"]  # type: ignore[arg-type]
    assert packs == [2, 1, 1]


def test_what_does_not_meet_the_condition_is_no_known_defect() -> None:
    """An update within bounds runs as it is, whatever is excused."""
    held = child.prepare(update(3), ["clamped_update"])
    assert isinstance(held, child.Ready)
    assert (held.known, held.replicated) == ({}, {})
    assert child.judge([held])[0].kind == "right"


def rows(axes: str, mesh: dict[str, int], spec: list[Any], *, whole: bool = False) -> Program:
    """A program that slices rows of a sharded array, and may return it as well."""
    step = Step("slice", ("x0",), {"start": [1], "limit": [5], "strides": [1]}, (Value("y0", (4,), "float32"),))
    outputs = [Output("y0", None), *([Output("x0", None)] if whole else [])]
    return Program(mesh, axes, (Input("x0", (8,), "float32", spec, "distinct"),), (step,), tuple(outputs))


def test_a_new_mistake_of_an_operation_with_a_known_one_is_not_excused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong values of a sharded slice are no array of another shape, which is how the known defect shows."""
    program = rows("explicit", {"a": 2, "b": 2}, [["a", "b"]], whole=True)
    plant(monkeypatch, ("slice", "lax", {"slice": lambda x, *how: jax.lax.slice(x, *how) + 1}, "explicit"))
    (found,) = verdicts([program])
    assert (found.kind, [*found.known]) == ("wrong", ["sliced_beside_whole"])
    assert not known.can_be("sliced_beside_whole", found.kind, found.detail)
    assert not known.can_be("sliced_beside_whole", "fails", "hangs")


TWO = {"a": 2, "b": 2}
A, B, BOTH = ["a"], ["b"], ["a", "b"]
POOL = {"size": [2, 2], "strides": [1, 1], "padding": [[1, 0], [0, 0]]}
WINDOW = {**POOL, "base": [2, 1], "within": [1, 1]}
CONV: dict[str, Any] = {"strides": [1], "padding": [[0, 0]], "base": [1], "within": [1], "groups": 1, "batches": 1}


def of(
    op: str,
    params: dict[str, Any],
    *operands: tuple[tuple[int, ...], list[Any]],
    mesh: dict[str, int] = {"a": 2},  # noqa: B006 # only read
    axes: str = "auto",
    dtype: str = "float32",
    out: list[Any] | None = None,
    whole: bool = False,
) -> Program:
    """A program of one operation on arrays of shapes with layouts; it may return its first operand as well."""
    inputs = tuple(Input(f"x{i}", shape, dtype, spec, "distinct") for i, (shape, spec) in enumerate(operands))
    step = Step(op, tuple(one.name for one in inputs), params, ())
    types = infer_results(step, {one.name: one.value for one in inputs}, mesh)
    values = tuple(Value(f"y{i}", *one) for i, one in enumerate(types))
    outputs = (*(Output(one.name, out) for one in values), *([Output("x0")] if whole else []))
    return Program(mesh, axes, inputs, (msgspec.structs.replace(step, results=values),), outputs)


def conv(left: list[Any], right: list[Any], mesh: dict[str, int] = TWO, **params: Any) -> Program:
    """A convolution of arrays with layouts."""
    shape = (4, 4 // params.get("groups", 1), 1)
    return of("conv", {**CONV, **params}, ((4, 4, 8), left), (shape, right), mesh=mesh)


def part(start: int, spec: list[Any]) -> Program:
    """A slice of two of four elements."""
    return of("dynamic_slice_constant", {"start": [start], "sizes": [2]}, ((4,), spec), out=spec)


def padded(low: int, within: int, spec: list[Any]) -> Program:
    """An array of eight elements, padded."""
    return of("pad", {"value": 0, "config": [[low, 0, within]]}, ((8,), spec), out=spec)


def strided(stride: int, spec: list[Any]) -> Program:
    """A slice of the first of four elements."""
    return of("slice", {"start": [0], "limit": [1], "strides": [stride]}, ((4,), spec))


def pool(op: str, spec: list[Any], mesh: dict[str, int] = {"a": 2}, **params: Any) -> Program:  # noqa: B006
    """The gradient or the JVP of maxima over windows."""
    return of(op, {**POOL, **params}, ((4, 4), spec), mesh=mesh)


def product(left: list[Any], right: list[Any], axes: str = "explicit") -> Program:
    """A batch of products."""
    params = {"contracted": [[2], [1]], "batch": [[0], [0]], "to": None}
    return of("dot_general", params, ((2, 4, 4), left), ((2, 4, 4), right), axes=axes)


def wide_sum(dtype: str) -> Program:
    """A convolution of a padded array, summed in float32."""
    params = {"strides": [1, 1], "padding": [[0, 1], [1, 0]]}
    operands = ((2, 4, 4, 1), [None, A, None, None]), ((1, 1, 1, 2), [None] * 4)
    return of("conv_channels_last", params, *operands, dtype=dtype)


def batched_add(spec: list[Any], mesh: dict[str, int]) -> Program:
    """Updates of each row by indices of its own."""
    return of("vmap_add", {}, ((4, 4), spec), ((4, 2), spec), ((4, 2), spec), mesh=mesh, dtype="int32")


SLICES = {"window": [1, 2], "inserted": [], "map": [0, 1], "mode": "drop", "how": "add"}
STRAIGHT = [[0, 0], [0, 0]]
NONE, NO = [None] * 2, [None] * 3
NEARLY: dict[str, tuple[Program, ...]] = {
    "batch_group_abort": tuple(
        of("conv", {**CONV, "batches": 2}, ((4, 4, 1), NO), ((4, 4, 1), NO), mesh=TWO, out=[A, features, None])
        for features in (B, None)
    ),
    "batch_group_sum": (conv([BOTH, None, None], [None] * 3, batches=2), conv([A, None, None], [None] * 3, batches=2)),
    "bits_over_devices": tuple(of("reduce_xor", {"dims": [i]}, ((4, 4), [A, None]), dtype="int32") for i in (0, 1)),
    "clamped_slice": (part(5, [A]), part(1, [A])),
    "clamped_update": (update(5), update(3)),
    "cond_of_two_layouts": tuple(
        of(op, {"body": "x - 1", "spec": [A], "second": [None], "n": 1}, ((4,), [A]))
        for op in ("cond_constrained", "while_loop_constrained")
    ),
    "convolution_both_sharded": (
        conv([None, A, None], [None, B, None]),
        conv([None, A, None], [None] * 3),
    ),
    "convolution_of_two_types": (wide_sum("bfloat16"), wide_sum("float32")),
    "convolution_over_strides": (conv([A, None, None], [None] * 3, base=[2]), conv([A, None, None], [None] * 3)),
    "dilated_padding": (padded(0, 1, [A]), padded(2, 0, [A])),
    "dilated_window": tuple(of("reduce_window_sum", {**WINDOW, "base": [n, 1]}, ((4, 4), NONE)) for n in (2, 1)),
    "dot_general_batch_type": (product([None] * 3, [A, None, None]), product([A, None, None], [A, None, None])),
    "empty_window": tuple(
        of("reduce_window_sum", {**WINDOW, "padding": [[2, 2], [1, 1]]}, ((n, 4), NONE), out=[None, A]) for n in (0, 2)
    ),
    "exp2_bfloat16": tuple(of("exp2", {}, ((4,), [A]), dtype=dtype) for dtype in ("bfloat16", "float32")),
    "int4_bits_counted": tuple(of("population_count", {}, ((4,), [A]), dtype=dtype) for dtype in ("int4", "int8")),
    "gamma_layout": tuple(of("lgamma", {}, ((4,), spec), axes="explicit") for spec in ([A], [None])),
    "grouped_convolution": (conv([None, A, None], [None] * 3, groups=2), conv([None, A, None], [None] * 3)),
    "negative_dilated_padding": (padded(-1, 1, [A]), padded(0, 1, [A])),
    "pool_gradient_padding": (
        pool("select_and_scatter_add", [A, None]),
        pool("select_and_scatter_add", [A, None], padding=STRAIGHT, strides=[2, 2]),
    ),
    "pool_tangent_padding": (pool("max_pool_jvp", [A, None]), pool("max_pool_jvp", [A, None], padding=STRAIGHT)),
    **dict.fromkeys(
        ("pool_tangent_stride", "pool_tangent_uneven"),
        tuple(pool(op, [A, None]) for op in ("max_pool_jvp", "select_and_scatter_add")),
    ),
    "scatter_of_no_updates": tuple(
        of("scatter_slices", SLICES, ((1, 2), NONE), ((2, 2), [A, B]), ((2, n, 2), NO), mesh=TWO, dtype="int32")
        for n in (0, 1)
    ),
    "scatter_rows_lost": (batched_add([A, None], TWO), batched_add([A, None], {"a": 2})),
    "slice_beyond_stride": (strided(4, [A]), strided(1, [A])),
    "sliced_beside_whole": (rows("auto", TWO, [BOTH], whole=True), rows("auto", TWO, [A], whole=True)),
    "special_function_layout": tuple(
        of("igammac", {}, ((4,), [None]), ((4,), spec), axes="explicit") for spec in ([A], [None])
    ),
    "strided_kernel_gradient": tuple(conv([None, None, A], NO, within=[n]) for n in (2, 1)),
    "transform_to_replicas": tuple(
        of("fft", {"which": "fft"}, ((4,), spec), axes="explicit", dtype="complex64") for spec in ([A], [None])
    ),
    "uneven_indices": tuple(
        of("at_add", {"mode": "drop"}, ((4,), [None]), ((n,), [None]), ((n,), [None]), mesh=TWO, dtype="int32")
        for n in (3, 4)
    ),
    "update_in_one_step": tuple(
        of("fori_index", {"start": 0, "n": n, "how": "set"}, ((4,), [None]), out=[A]) for n in (1, 2)
    ),
}
"""Of each condition a program that meets it, and one that nearly does."""


@pytest.mark.parametrize("name", [name for name, sign in known.SIGNS.items() if sign.holds and known.find_here(name)])
def test_what_is_nearly_a_known_defect_is_none(name: str) -> None:
    """A condition holds of a program with the defect and not of a near miss, and does not excuse another mistake."""

    def found(program: Program) -> known.Steps:
        values = running.make_inputs(program)
        return known.find_defects(program, running.trace_program(program, values).closed, values, certain=False)

    meets, nearly = NEARLY[name]
    assert (found(meets).get(name), found(nearly).get(name)) == ([0], None)
    for mistake in (("wrong", "result 0: layout P('a',), expected P()"), ("fails", "hangs"), ("fails", "KeyError: 0")):
        assert not known.can_be(name, *mistake)


def test_a_listed_refusal_begins_with_its_words() -> None:
    """The words of an error are compared from where it begins, and what was done is stated in front of it."""
    refusal = "DuplicateSpecError: A single NamedSharding spec"
    assert known.can_be("index_repeats_axis", "fails", f"derivative: {refusal}")
    assert not known.can_be("index_repeats_axis", "fails", f"KeyError: {refusal}")
    assert not known.can_be("index_repeats_axis", "wrong", refusal)


@pytest.mark.parametrize(
    "name", [name for name, sign in known.SIGNS.items() if not sign.holds and known.find_here(name)]
)
def test_an_error_of_another_operation_is_no_known_defect(name: str) -> None:
    """The words of a script are those of its sign, which is of some primitives only, or of an abort."""
    program, sign = of("neg", {}, ((4,), [A])), known.SIGNS[name]
    closed = running.trace_unsharded(program)
    words = DEFECTS[name].words or sign.words
    assert known.match_error(program, closed, words).get(name) == (None if sign.primitives else [0])


@pytest.mark.parametrize(
    ("name", "shape", "to", "near"),
    [
        ("reshape_of_nothing", (0, 2), [0], (2, 2)),
        ("reshape_to_ones", (4, 2), [8, 1], (1, 8)),
        ("reshape_beside_ones", (4, 1), [2, 2, 1], (4, 2)),
    ],
)
def test_an_error_of_other_shapes_is_no_known_defect(
    name: str, shape: tuple[int, ...], to: list[int], near: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of a reshape is that of a known defect for the defect's shapes alone."""
    monkeypatch.setattr(jax, "__version__", DEFECTS[name].seen_on[0])
    message = "AssertionError: " if name == "reshape_beside_ones" else "IndexError: list index out of range"
    met = []
    for one in (shape, near):
        sizes = to if one is shape else [int(np.prod(near))]
        program = of("reshape", {"sizes": sizes, "to": None}, (one, [None] * len(one)), axes="explicit")
        met.append(name in known.match_error(program, running.trace_unsharded(program), message))
    assert met == [True, False]


@pytest.mark.parametrize(
    ("name", "kind", "detail", "beforehand"),
    [
        ("clamped_update", "wrong", "result 0 on device 0: 1 of 4 wrong", set()),
        ("empty_window", "fails", "aborts: a check failed", {"empty_window"}),
    ],
)
def test_only_what_aborts_is_replicated_beforehand(name: str, kind: str, detail: str, beforehand: set[str]) -> None:
    """Where a defect gives wrong values, another mistake of its operation would be hidden."""
    verdict = Verdict(kind, detail, known={name: [0]}, replicated=[0])
    search: Any = SimpleNamespace(
        workers=SimpleNamespace(excused=set()), run=lambda programs: [Verdict("right")], meet=lambda names: None
    )
    assert Search.excuse(search, update(5), verdict)
    assert search.workers.excused == beforehand


@pytest.mark.lengthy
def test_a_known_defect_that_one_device_has_too_is_excused() -> None:
    """Replicating does not help, and nothing of it is due to layouts: exp2 of 23 in bfloat16."""
    search = Search(1, ["exp2"], ["auto"], Workers(1), lambda text: None)
    search.step([of("exp2", {}, ((24,), [A]), dtype="bfloat16")], math.inf)
    search.workers.close()
    assert (search.outcome.findings, search.outcome.known) == ([], {"exp2_bfloat16": 1})


def test_what_is_wrong_beside_a_known_defect_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that is wrong with the operation replicated as well is reported, with the steps that were."""
    monkeypatch.setattr(running, "describe_difference", lambda *of: "another thing")
    held = child.prepare(update(5), ["clamped_update"])
    assert isinstance(held, child.Ready)
    (found,) = child.judge([held])
    assert (found.kind, found.replicated) == ("wrong", [0])
    assert known.replicate_steps(update(5), found.replicated).operations == (
        "constrain_twice",
        "constrain_twice",
        *update(5).operations,
        "constrain_twice",
    )


def test_each_layout_is_enumerated() -> None:
    """Of an operation, each layout of its operand and of its result is in some forward program."""
    reached = Reached(1)
    (batch,) = enumerate_layouts(["neg"], ["auto", "explicit"], 1, 2, 8, reached)
    for axes in ({"a": 2}, {"a": 4}, {"a": 2, "b": 2}, {"a": 3}):
        auto = [one for one in batch if one.axes == "auto" and one.mesh == axes]
        forward = [one for one in auto if not one.derivative]
        every = [*layouts(auto[0].inputs[0].shape, axes)]
        assert all(any(spec == one.inputs[0].spec for one in forward) for spec in every)
        assert all(any(spec == one.outputs[0].spec for one in forward) for spec in (None, *every))
        derived = [one for one in auto if one.derivative]
        assert not derived or all(any(spec == one.inputs[0].spec for one in derived) for spec in every)
        assert all(one.outputs[0].spec is None for one in derived)
    assert not any("unused" in entry for one in batch for entry in one.inputs[0].spec if entry)
    assert reached.combinations == len(batch) <= reached.of_combinations


class Noted(Workers):
    """Runs nothing, and notes how each batch would be compiled."""

    def __init__(self) -> None:
        super().__init__(1)
        self.noted: list[bool] = []

    def run(self, programs: Sequence[Program], until: float = math.inf) -> Iterator[tuple[Program, Verdict]]:
        """All programs are right."""
        self.noted.append(self.quick)
        return ((one, Verdict("right")) for one in programs)


@pytest.mark.parametrize("sets", [0, 1])
def test_one_batch_of_four_is_compiled_by_default(sets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn programs and enumerated ones have XLA's defaults in one batch of four."""
    each = 1 if sets else 2  # those of single operations, and those of several
    monkeypatch.setattr(Search, "draw", lambda self: repeat([update(3)], 4 * each))
    monkeypatch.setattr(Search, "enumerate", lambda self, sets: repeat([update(3)], 4 * each))
    noted = Noted()
    Search(1, ["neg"], ["auto"], noted, lambda text: None).search(60, sets)
    noted.close()
    assert noted.noted == [True] * 3 * each + [False] * each


def test_an_operation_without_programs_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that could not be drawn, or have not run yet, do not count."""
    monkeypatch.setattr(exhaustive, "programs", lambda names, *of, **how: [update(3)] if names == ["neg"] else [])
    noted = Noted()
    counts: list[int] = []
    found = Search(1, ["neg", "abs", "sin"], ["auto"], noted, lambda text: None)

    def run(programs: Sequence[Program], until: float) -> list[Any]:
        assert found.outcome.reached is not None
        counts.append(found.outcome.reached.operations)
        return [(one, Verdict("right")) for one in programs]

    monkeypatch.setattr(noted, "run", run)
    outcome = found.search(60, 1)
    noted.close()
    assert outcome.reached is not None
    assert outcome.reached.operations == 1
    assert 0 in counts


def test_the_time_limit_is_that_of_packs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a batch what began in time is counted, and nothing else of it runs, nor counts as reached."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def run(self: Worker, programs: Sequence[Program], *, quick: bool) -> list[Verdict]:
        now[0] += 40
        return [Verdict("right")] * len(programs)

    monkeypatch.setattr(Worker, "run", run)
    found = Search(1, ["neg"], ["auto"], Workers(1), lambda text: None)
    batch = [update(3) for _ in range(5 * workers.PACK)]

    def enumerate_once(sets: int) -> Iterator[list[Program]]:
        found.outcome.reached = Reached(1, combinations=len(batch))
        return iter([batch])

    monkeypatch.setattr(found, "enumerate", enumerate_once)
    outcome = found.search(60, 1)
    found.workers.close()
    assert outcome.programs == 2 * workers.PACK
    assert outcome.reached == Reached(1, combinations=outcome.programs)
    assert "1 program, " in report.summary(Outcome("0", "cpu", "", 0, programs=1))


def small(steps: Sequence[Step], outputs: Sequence[str], dtype: str = "bfloat16", derivative: str = "") -> Program:
    """A program of an array of 0, 1, 2 and 3."""
    inputs = (Input("x0", (4,), dtype, [["a"]], "distinct"),)
    return Program({"a": 2}, "auto", inputs, tuple(steps), tuple(map(Output, outputs)), derivative)


def reference(program: Program) -> running.Reference:
    """The right results of a program, with bounds."""
    found = running.compute_reference(program, running.trace_unsharded(program), running.make_inputs(program))
    assert isinstance(found, running.Reference)
    return found


def test_a_bound_is_a_sixteenth_of_the_result_at_most() -> None:
    """A narrow dtype does not make anything right."""
    right = reference(small([Step("exp", ("x0",), {}, (Value("y0", (4,), "bfloat16"),))], ["y0"]))
    assert right.bounds == [right.results[0].astype(float).max() / 16]
    assert not right.near


def test_a_sum_in_eight_bits_is_off_by_a_sixteenth_and_more() -> None:
    """Six times 5, one after the other, is 28 in float8_e4m3fn."""
    assert {*running.LARGE} == {*INEXACT}
    dtype = jax.numpy.float8_e4m3fn
    bound, near = running.bound_result(np.array([30.0], dtype), running.Way(frozenset({"float8_e4m3fn"}), 30.0), 1)
    assert bound == near >= 2


@pytest.mark.parametrize("count", [16, 68])
def test_a_sum_of_many_terms_is_undetermined_where_adding_one_by_one_rounds_more_away(count: int) -> None:
    """68 times 7 in bfloat16, one after the other, is 508; a sum of few terms is wrong as it ever was."""
    step = Step("at_add", ("x0", "x1", "x2"), {"mode": "drop"}, (Value("y0", (1,), "bfloat16"),))
    inputs = [Input("x0", (1,), "bfloat16", [None], (0, 0)), Input("x1", (count,), "int32", [["a"]], (0, 0))]
    inputs.append(Input("x2", (count,), "bfloat16", [["a"]], (7, 7)))
    right = reference(Program({"a": 2}, "auto", tuple(inputs), (step,), (Output("y0"),)))
    total = float(right.results[0].astype(float)[0])
    found = jax.numpy.array([total * 1.07], "bfloat16")
    assert running.judge_results(right, [found], [None]).kind == ("wrong" if count == 16 else "undetermined")


def test_a_bound_is_in_the_dtypes_that_rounded() -> None:
    """An exact operand of a narrow dtype does not widen the bound of a wide result."""
    steps = (
        Step("convert_element_type", ("x0",), {"dtype": "float32"}, (Value("y0", (4,), "float32"),)),
        Step("exp", ("y0",), {}, (Value("y1", (4,), "float32"),)),
    )
    bounds = reference(small(steps, ["y1", "y0"])).bounds
    assert 0 < bounds[0] < 0.002
    assert bounds[1] == 0


def test_what_a_cancellation_leaves_is_undetermined() -> None:
    """A result is right as near as any other, wrong beyond what was rounded, and undetermined between these."""
    way = running.Way(frozenset({"bfloat16"}), 1000.0)
    right = np.array([1.0, 0.0], jax.numpy.bfloat16)
    bound, near = running.bound_result(right, way, 1)
    assert (bound, near) == (125.0, 1 / 16)
    found = running.Reference([right], [bound], [near])
    kinds = [running.judge_results(found, [jax.numpy.array([1, x], right.dtype)], [None]).kind for x in (0, 9, 200)]
    assert kinds == ["right", "undetermined", "wrong"]


def test_a_derivative_of_what_an_operation_without_operands_makes_is_judged() -> None:
    """A derivative has no values of steps to look at."""
    params = {"dtype": "float32", "shape": [4], "dimension": 0, "to": None}
    steps = (
        Step("iota", (), params, (Value("y0", (4,), "float32"),)),
        Step("mul", ("x0", "y0"), {}, (Value("y1", (4,), "float32"),)),
    )
    assert verdicts([small(steps, ["y1"], "float32", "vjp")]) == [Verdict("right")]


def test_an_error_in_a_bound_is_no_invalid_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the search itself is not set aside."""

    def broken(x: np.ndarray) -> bool:
        raise KeyError

    monkeypatch.setattr(running, "is_whole", broken)
    with pytest.raises(KeyError):
        child.prepare(update(3))


def test_a_script_shows_what_is_wrong(tmp_path: Any) -> None:
    """A script is plain JAX of at most 28 lines, and exits with 0 where nothing is wrong."""
    (program,) = [one for one in programs(["rev"], "auto", 1, 12, 8) if not one.derivative][:1]
    text = script(program, TEMPLATES, "The reverse.")
    path = tmp_path / "shown.py"
    path.write_text(text)
    assert len(text.splitlines()) <= 28
    assert python(path).returncode == 0
    for raises in (False, True):
        path.write_text(script(program, {"rev": "lax.rev({0}, (9,))"}, "It fails.", raises=raises))
        assert python(path).returncode == (1 if raises else 2)


def test_a_platform_without_devices_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A platform that JAX has no devices of is refused with its name, whichever of its own JAX has tried last."""
    said = "RuntimeError: Unable to initialize backend 'rocm'"
    ended = subprocess.CompletedProcess(["python"], 1, "", f"Traceback\n{said}")
    monkeypatch.setattr(subprocess, "run", lambda *command, **how: ended)
    with pytest.raises(RequestError, match=f"^--platform=gpu: expected cuda or rocm devices: {said}$"):
        commands.probe(Where("gpu"))


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_no_part_of_what_is_printed(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Causes are all that a search prints; how far it is takes the place of itself on a terminal, or a few lines."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    progress = commands.Progress()
    for count in range(1, 4):
        progress.show(Outcome("0", "cpu", "", 0, count))
    progress.print("wrong: auto")
    progress.last_write -= commands.QUIET_SECONDS
    progress.show(Outcome("0", "cpu", "", 0, 4))
    printed, shown = capsys.readouterr()
    assert printed == "wrong: auto\n"
    lines = [f"{count} program{'s' * (count > 1)} in 0 s, 0 causes, 0 processes ended" for count in range(1, 5)]
    erase = "\r\x1b[K"
    assert shown == (f"{erase}{erase.join(lines[:3])}{erase}{erase}{lines[3]}" if terminal else f"{lines[3]}\n")


def test_a_table_says_the_worst_and_a_comparison_what_changed() -> None:
    """A cell is its worst verdict; two runs are compared cell by cell."""
    before, after = (Outcome("0", "cpu", "", 0) for _ in range(2))
    before.counts = {"pad": {"Auto": {"right": 5}}, "rev": {"Auto": {"right": 2, "refused": 1}}}
    after.counts = {"pad": {"Auto": {"right": 4, "wrong": 1}}, "rev": {"Auto": {"right": 3, "refused": 1}}}
    assert report.cell({"right": 4, "wrong": 1}) == "wrong 1 of 5"
    assert report.cell({"right": 2, "refused": 1}) == "refused 1 of 3"
    assert list(report.compare_outcomes(before, after)) == ["pad, Auto: right 5 -> wrong 1 of 5"]
    assert "| `pad` | wrong 1 of 5 |" in report.markdown(after)
    after.counts["gather"] = {"Auto": {}, "vmap, Auto": {"invalid": 3}}  # no program of it was judged
    assert [row[0] for row in report.rows(after)] == ["operation", "pad", "rev"]
