"""Programs with layouts: what is planted is found, what is drawn is valid, and what is shrunk stays wrong."""

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

import jax
import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from shardproof.command import main
from shardproof.properties.conformance import child, exhaustive, known, report, running, workers
from shardproof.properties.conformance.exhaustive import Reached, enumerate_layouts, layouts
from shardproof.properties.conformance.operations import OPERATIONS, TEMPLATES
from shardproof.properties.conformance.program import Input, Output, Program, Step, Value, script
from shardproof.properties.conformance.programs import programs
from shardproof.properties.conformance.running import Verdict
from shardproof.properties.conformance.search import Outcome, Search
from shardproof.properties.conformance.shrink import moves, shrink
from shardproof.properties.conformance.workers import Where, Worker, Workers
from shardproof.properties.known_defects import DEFECTS
from shardproof.properties.meta.planted_layouts import BUGS, Bug, Patched

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
            assert program.operations == (name,)
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
    """A process that gives no answer is ended, which is a verdict on its program."""
    monkeypatch.setattr(workers, "ALONE_SECONDS", 60)
    worker = Worker(fast=True, where=Where(preload="shardproof.properties.meta.aborting"))
    (found,) = worker.run(programs(["rev"], "auto", 1, 1, 6))
    worker.words.close()
    assert (found.kind, found.detail) == ("fails", "hangs")


@pytest.mark.lengthy
def test_a_wrong_backend_is_found_by_the_command(tmp_path: Any) -> None:
    """A wrong result of a backend, with layouts and without, ends as a script that shows it."""
    backend = "shardproof.properties.meta.aborting"
    options = ["--operations", "neg", "--axes", "auto", "--minutes", "0", "--import", backend]
    found = CliRunner().invoke(main, ["conformance", *options, "--scripts", str(tmp_path)])
    assert found.exit_code == 1, found.output
    assert "wrong without layouts" in found.output
    (path, *_) = sorted(tmp_path.glob("*.py"))
    assert f"import {backend}" in path.read_text()


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
    """Each condition, and each pattern of an error, is one of a defect that has a script."""
    assert {*known.CONDITIONS, *known.ERRORS} <= {*DEFECTS}


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


def test_what_is_nearly_a_known_defect_runs_as_it_is() -> None:
    """A slice of an array over one axis, or that is read nowhere else, is not replicated."""
    two = {"a": 2, "b": 2}
    for program in (rows("auto", two, [["a"]], whole=True), rows("auto", two, [["a", "b"]])):
        held = child.prepare(program, ["sliced_beside_whole"])
        assert isinstance(held, child.Ready)
        assert (held.replicated, child.judge([held])[0].kind) == ({}, "right")


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

    def run(self, programs: Sequence[Program]) -> Iterator[tuple[Program, Verdict]]:
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

    def run(programs: Sequence[Program]) -> list[Any]:
        assert found.outcome.reached is not None
        counts.append(found.outcome.reached.operations)
        return []

    monkeypatch.setattr(noted, "run", run)
    outcome = found.search(60, 1)
    noted.close()
    assert outcome.reached is not None
    assert outcome.reached.operations == 1
    assert 0 in counts


def small(steps: Sequence[Step], outputs: Sequence[str], dtype: str = "bfloat16", derivative: str = "") -> Program:
    """A program of an array of 0, 1, 2 and 3."""
    inputs = (Input("x0", (4,), dtype, [["a"]], "distinct"),)
    return Program({"a": 2}, "auto", inputs, tuple(steps), tuple(map(Output, outputs)), derivative)


def reference(program: Program) -> running.Reference:
    """The right results of a program, with bounds."""
    found = running.compute_reference(program, running.make_inputs(program))
    assert isinstance(found, running.Reference)
    return found


def test_a_bound_is_a_sixteenth_of_the_result_at_most() -> None:
    """A narrow dtype does not make anything right."""
    right = reference(small([Step("exp", ("x0",), {}, (Value("y0", (4,), "bfloat16"),))], ["y0"]))
    assert right.bounds == [right.results[0].astype(float).max() / 16]
    assert not right.near


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
    bound, near = running.bound_result(right, way)
    assert (bound, near) == (125.0, 1 / 16)
    found = running.Reference([right], [bound], "", [near])
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
    from shardproof.properties.meta.runs import python

    (program,) = [one for one in programs(["rev"], "auto", 1, 12, 8) if not one.derivative][:1]
    text = script(program, TEMPLATES, "The reverse.")
    path = tmp_path / "shown.py"
    path.write_text(text)
    assert len(text.splitlines()) <= 28
    assert python(path).returncode == 0


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
