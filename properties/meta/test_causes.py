"""One mistake is reported once, the worst first, with everything that it breaks."""

import dataclasses
import importlib
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from shardproof.impl import collectives
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.chain import Chain
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts import CONTRACTS, Scope
from shardproof.properties.engines import SimulateEngine, XlaEngine
from shardproof.properties.engines import engine as engine_module
from shardproof.properties.engines.engine import abstract_mesh, whole_tracebacks
from shardproof.properties.laws import LAWS
from shardproof.properties.laws.law import LEAKED, NOT_REPRODUCIBLE, LawViolation
from shardproof.properties.meta.runs import PYTEST, ROOT, pytest_given, python
from shardproof.properties.programs.violation import Broken, Difference, Kind, Of
from shardproof.properties.report.checking import check_program
from shardproof.properties.report.failures.causes import by_cause, group_text
from shardproof.properties.report.failures.files import paths
from shardproof.properties.report.failures.text import report
from shardproof.properties.report.plugin import once_per_cause
from shardproof.properties.runner import search as search_module
from shardproof.properties.runner.given import user_implementation
from shardproof.properties.runner.judging import message_of
from shardproof.properties.runner.programs import Program
from shardproof.properties.runner.search import find_violation, search

CASE = Case(
    CONTRACTS["all_reduce"],
    MeshCase(("dp",), (2,)),
    "dp",
    (Operand((2,), "float32", Placement((("dp",),))),),
    (("op", "sum"),),
    (Data("exact", 0),),
)


@pytest.fixture(autouse=True)
def folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures are written below the working directory."""
    monkeypatch.chdir(tmp_path)


def rounds_and_doubles(x: Any, axis_name: Any, *, op: str = "sum") -> Any:
    """A result that is off by a rounding everywhere, and doubled over an odd number of participants above one."""
    result = collectives.all_reduce(x, axis_name, op=op)
    if result.dtype not in (jnp.float32, jnp.bfloat16, jnp.float16):
        return result
    p = lax.axis_size(axis_name)
    return result * (2 if p % 2 and p > 1 else 1 + 2 * float(jnp.finfo(result.dtype).eps))


def wrong_everywhere(x: Any, axis_name: Any, *, offset: int = 1) -> Any:
    """Shifts by one too many."""
    return collectives.ring_shift(x, axis_name, offset=offset + 1)


def violation(
    law: str,
    finding: str,
    *,
    off: float | None = None,
    of: Of = "result",
    kind: Kind = "values",
    origin: Sequence[str] = (),
    chain: Chain = (),
    engine: str = "xla",
) -> LawViolation:
    """A violation of a sum, of which a value may be off by a factor."""
    difference = None
    if off is not None:
        expected = np.ones((2, 2), np.float32)
        difference = Difference.between(of, of, expected, (expected * off).astype(np.float32))
    found, implementation = (
        Broken(kind, finding, difference=difference),
        user_implementation("all_reduce", rounds_and_doubles),
    )
    case = dataclasses.replace(CASE, chain=chain)
    return LawViolation(implementation, LAWS[law], case, engine, found, origin=origin)


@pytest.mark.lengthy
@pytest.mark.either_end
def test_rounding_does_not_hide_what_is_worse() -> None:
    """A search that meets differences of rounding goes on until it finds wrong values, or has drawn all it may."""
    found = find_violation(
        [LAWS["value"]],
        user_implementation("all_reduce", rounds_and_doubles),
        SimulateEngine(),
        Scope(),
        max_examples=200,
        random_seed=0,
    ).violation
    assert found is not None
    assert not found.rounding
    assert found.case.mesh.size == 3


def doubled_or_narrow(x: Any, *, data: Any) -> Any:
    """Twice the sum over several participants; of the smallest block on two of them a result of another dtype."""
    total, p = lax.psum(x.sum(0), data), lax.axis_size(data)
    total = total if p == 1 else 2 * total
    return total.astype(jnp.float16) if p == 2 and x.shape == (1, 1) else total


def test_what_is_shrunk_stays_what_was_found() -> None:
    """A search that finds wrong values ends with wrong values, whatever else is wrong with smaller cases."""
    described: Any = {"arguments": ("n@data k",), "results": "k", "dtypes": "float32"}
    program = Program(doubled_or_narrow, lambda x: x.sum(0), **described)
    kinds = []
    for seed in range(4):
        how: Any = {"max_examples": 20, "random_seed": seed, "before": lambda *_: ""}
        search_of = partial(search, [LAWS["value"]], program.implementation, SimulateEngine(), Scope(), **how)
        first, least = (search_of(shrink=shrink).violation for shrink in (False, True))
        assert first is not None
        assert least is not None
        assert least.kind == first.kind
        kinds.append(first.kind)
    assert "values" in kinds


@pytest.mark.parametrize(("factor", "rounding"), [(1 + 2**-22, True), (2.0, False), (np.inf, False), (1.001, False)])
def test_rounding_is_what_some_roundings_make(factor: float, rounding: bool) -> None:
    """A few units in the last place of the dtype, and no more."""
    assert violation("value", "wrong", off=factor).rounding is rounding


def test_failures_of_one_cause_are_together() -> None:
    """Wrong values come first and once, whatever the law, then what else there is, and rounding last."""
    entries = [
        report(one)
        for one in (
            violation("gradient", "off", off=1 + 2**-22, of="gradient"),
            violation("value", "1 block", off=2.0),
            violation("communication", "2 permutes", kind="communication"),
            violation("value", "2 blocks", off=3.0, chain=("scan",)),
            violation("value", "raises ValueError: one", kind="raises"),
        )
    ]
    groups = by_cause(entries)
    assert [len(group) for group in groups] == [2, 1, 1, 1]
    assert [group[0]["cause"].partition(": ")[2] for group in groups] == [
        "wrong values of the result",
        "communication",
        "raises ValueError at no place of its own",
        "rounding of the derivatives",
    ]
    text = group_text(groups[0])
    assert text.count("first wrong element") == 1
    assert (
        "  wrong in the same way under 1 more check:\n    value under scan: mesh (dp=2), axis 'dp': 2 blocks [xla]: "
        in text
    )


def test_what_follows_from_wrong_values_is_reported_with_them() -> None:
    """Derivatives of wrong values are wrong: that is a line, in any order; alone they are reported."""
    of_values, of_gradient, rounded = (
        report(one)
        for one in (
            violation("value", "1 block", off=2.0),
            violation("gradient", "2 blocks", off=3.0, of="gradient"),
            violation("value", "2 blocks", off=1 + 2**-22),
        )
    )
    for entries in ([of_values, of_gradient], [of_gradient, of_values]):
        (group,) = by_cause(entries)
        assert group[0] is of_values
        assert "  and its derivatives under 1 check:\n    gradient: mesh (dp=2)" in group_text(group)
    assert [group[0] for group in by_cause([of_gradient, rounded])] == [of_gradient, rounded]


def test_what_follows_is_listed_once_for_all_engines() -> None:
    """Of tests that fail for one cause on two engines one has its text, with one heading for what follows from it."""
    place, failed = SimpleNamespace(reprcrash=None), []
    for engine in ("simulate", "xla"):
        of_values = violation("value", "1 block", off=2.0, engine=engine)
        of_gradient = violation("gradient", "2 blocks", off=3.0, of="gradient", engine=engine)
        entries = [report(of_values), report(of_gradient)]
        failed.append(SimpleNamespace(nodeid=engine, longrepr=place, shardproof_failures=entries))
    other = SimpleNamespace(nodeid="c", longrepr="another")
    assert once_per_cause([*failed, other]) == [failed[0], other]
    text = str(failed[0].longrepr)
    assert text.count("wrong in the same way under 1 more check") == 1
    assert text.count("and its derivatives under 2 checks") == 1
    assert text.count("derivatives under") == 1
    assert other.longrepr == "another"


def test_a_regression_that_is_found_again_is_reported_once() -> None:
    """The search ends with the case of a regression, and so with its script: that is no other failure."""
    again = [report(violation("value", "1 block", off=2.0)) for _ in range(2)]
    (group,) = by_cause([*again, report(violation("value", "1 block", off=2.0, chain=("scan",)))])
    assert [one["headline"].split(": ")[1] for one in group] == ["value", "value under scan"]


def test_a_wrong_shape_is_reported_once() -> None:
    """Laws that cannot go on with a result of another shape, dtype or tree find the same as that of values."""
    kinds: tuple[tuple[str, Kind], ...] = (("value", "shape"), ("gradient", "tree"), ("communication", "dtype"))
    (group,) = by_cause([report(violation(law, "blocks of shape (2, 1)", kind=kind)) for law, kind in kinds])
    assert "  wrong in the same way under 2 more checks:\n    gradient: mesh (dp=2)" in group_text(group)


def test_a_function_that_never_runs_is_reported_in_a_few_lines() -> None:
    """Raising in every law, or NumPy on traced values, is reported once; other causes by their laws alone."""

    def uses_numpy(x: Any, *, data: Any) -> Any:
        return np.tanh(x)

    with pytest.raises(AssertionError) as raised:
        check_program(uses_numpy, np.tanh, arguments=("n@data",), results="n@data", max_examples=4)
    lines = [line for line in str(raised.value).split("\n") if line]
    assert lines[0].startswith(
        "uses_numpy: value: mesh (dp=1), data='dp': raises TracerArrayConversionError: The numpy"
    )
    assert str(raised.value).count("uses_numpy: ") == 1
    assert re.fullmatch(r" +gradient.*, type, communication \[simulate\]; value.*, agreement.* \[xla\]", lines[-1])
    assert len(lines) <= 10
    assert not any("program.py" in line for line in lines), "where the suite calls it is no news"


def test_a_function_that_keeps_state_is_reported() -> None:
    """Other values for the same case are reported, and an array that is retained from another call."""
    calls, shapes = list[Any](), list[Any]()

    def counts(x: Any, *, data: Any) -> Any:
        calls.append(0)
        return x * len(calls)

    def counts_to_five(x: Any, *, data: Any) -> Any:
        calls.append(0)
        return x * (2 if len(calls) % 5 == 0 else 1)

    def wears_out(x: Any, *, data: Any) -> Any:
        shapes.append(x.shape)
        return x * (2 if shapes.count(x.shape) > 3 else 1)

    def leaks(x: Any, *, data: Any) -> Any:
        calls.append(x)
        return x + calls[0]

    described: Any = {"arguments": ("n@data",), "results": "n@data", "laws": "value", "dtypes": "float32"}
    for function, why in ((counts, "\n  not the same twice"), (leaks, f"^leaks: value: .*: {LEAKED}\n")):
        calls.clear()
        with pytest.raises(AssertionError, match=why) as caught:
            check_program(function, lambda x: x, **described, max_examples=4)
        assert "times the right values" not in str(caught.value)
    assert len([line for line in str(caught.value).split("\n") if line]) <= 10
    assert "not the same twice" not in str(caught.value)
    assert "compiled in this process" not in str(caught.value)
    for function in (counts_to_five, wears_out):
        program = Program(function, lambda x: x, arguments=("n@data",), results="n@data", dtypes="float32")
        scope = Scope(max_devices=4, available=4)
        found = find_violation(
            [LAWS["value"]], program.implementation, SimulateEngine(), scope, max_examples=8, shrink=True
        )
        assert found.violation is not None
        assert found.violation.diagnosis == [NOT_REPRODUCIBLE]


@pytest.mark.needs_devices(2)
def test_few_programs_are_compiled_for_the_smallest_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a mistake that XLA alone shows the smallest case found within the allowed compilations is reported."""
    engine, run, first = XlaEngine(), engine_module._run, list[int]()

    def wrong_of_many(function: Any, avals: Any, arrays: Any) -> Any:
        results = run(function, avals, arrays)
        if max(x.size for x in arrays) < 4:
            return results
        first.append(engine.compilations)
        return [y + 1 for y in results]

    monkeypatch.setattr(engine_module, "_run", wrong_of_many)
    monkeypatch.setattr(search_module, "SHRINKING", 2)
    total = Program(
        lambda x, *, data: lax.psum(x.sum(0), data), lambda x: x.sum(0), arguments=("rows@data n",), results="n"
    )
    found = find_violation([LAWS["value"]], total.implementation, engine, Scope(2, 2), max_examples=8)
    assert found.violation is not None
    assert engine.compilations - first[0] <= 3 * search_module.SHRINKING  # and a rerun or two; without a limit, 15


def test_an_array_that_leaves_a_scan_is_reported_once() -> None:
    """It is in every trace, so that one failure says all, and nothing is compiled."""
    left = list[Any]()

    def leaks(x: Any, *, data: Any) -> Any:
        def step(total: Any, row: Any) -> tuple[Any, None]:
            left.append(total)
            return total + row, None

        total, _ = lax.scan(step, jnp.zeros_like(x[0]), x)
        return lax.psum(total + 0 * left[-1], data)

    with pytest.raises(AssertionError, match=f"^leaks: value: .*{LEAKED}\n") as caught:
        check_program(leaks, lambda x: x.sum(0), arguments=("rows@data n",), results="n", max_examples=4)
    assert str(caught.value).count("leaks: value: ") == str(caught.value).count("\n  case: ") == 1
    assert "not run on xla, since it keeps arrays" in str(caught.value)


def test_state_of_the_first_call_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that remembers the first mesh is wrong whenever it is called again, but not in another process."""
    (tmp_path / "remembering.py").write_text(
        "from jax import lax\n\nFIRST = {}\n\n\ndef scales(x, *, data):\n"
        "    p = lax.axis_size(data)\n    return lax.psum(x.sum(0), data) * FIRST.setdefault('p', p) / p\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    scales = importlib.import_module("remembering").scales
    described: Any = {"arguments": ("rows@data n",), "results": "n", "laws": "value", "dtypes": "float32"}
    with pytest.raises(AssertionError, match="\n  not the same twice: in another process the law holds"):
        check_program(scales, lambda x: x.sum(0), **described, max_examples=4)


def test_an_axis_that_is_written_out_is_reported() -> None:
    """A function that names an axis of its own mesh is to use the one that it gets; the axis is in the headline."""

    def sums(x: Any, *, data: Any) -> Any:
        return lax.psum(x, "model")

    def permutes(x: Any) -> Any:
        return lax.ppermute(x, "model", [(0, 0)])

    described: Any = {"arguments": ("n@data",), "results": "n@data", "laws": "value", "max_examples": 4}
    with pytest.raises(AssertionError, match=r"^sums: value: .*unbound axis name: model\n") as caught:
        check_program(sums, lambda x: x, **described)
    assert "\n  expected the axes that it gets as data: " in str(caught.value)
    assert len([line for line in str(caught.value).split("\n") if line]) <= 10
    mesh = abstract_mesh(MeshCase(("dp",), (1,)))
    for function in (permutes, lambda x: lax.pcast(x, "model", to="varying"), lambda x: x + lax.axis_index("model")):
        mapped = jax.shard_map(function, mesh=mesh, in_specs=PartitionSpec("dp"), out_specs=PartitionSpec("dp"))
        with whole_tracebacks(), pytest.raises((AssertionError, NameError)) as raised:
            jax.make_jaxpr(mapped)(jax.ShapeDtypeStruct((1,), "float32"))
        assert "unbound axis name: model" in message_of(raised.value)


def test_what_serves_excludes_is_reported_once() -> None:
    """A condition that no case satisfies is one line, whatever the laws and engines."""
    with pytest.raises(AssertionError) as raised:
        check_program(
            lambda x, *, data: x,
            lambda x: x,
            arguments=("n@data",),
            results="n@data",
            serves=lambda n: n < 0,
            laws=["value", "agreement"],
        )
    why = "held on no case: all 1,000 that were drawn are excluded; stated: serves: some n"
    assert re.fullmatch(rf"lambda_: value \(simulate\), value \(xla\), agreement \(xla\): {why}", str(raised.value))


def test_a_long_name_is_a_file_name() -> None:
    """However long a function's name is, its failures are written."""

    def function(x: Any, axis_name: Any, *, op: str = "sum") -> Any:
        return x

    function.__name__ = "reduce" * 100
    made = LawViolation(
        user_implementation("all_reduce", function),
        LAWS["value"],
        CASE,
        "xla",
        Broken("values", "wrong", data=CASE.data[0]),
    )
    assert "script" in report(made)
    assert len(paths(made).script.name) < 200


def test_what_cannot_be_written_is_reported(tmp_path: Path) -> None:
    """Where there is no place for files the report is that of a run with them, and a line says why there are none."""
    (tmp_path / ".shardproof").write_text("in the way")
    text = report(violation("value", "1 block", off=2.0))["text"]
    assert "first wrong element" in text
    assert re.search(r"\n  no files: \.shardproof/failures cannot be written: [^\n]*$", text)


@pytest.mark.lengthy
@pytest.mark.either_end
def test_a_run_shows_a_cause_once(tmp_path: Path) -> None:
    """The terminal and the report have one picture of each cause, and a line for each other check that it fails."""
    (tmp_path / "mine.py").write_text(
        "from shardproof.impl.collectives import ring_shift as right\n\n\n"
        "def shift(x, axis_name, *, offset=1):\n    return right(x, axis_name, offset=offset + 1)\n"
    )
    given = "--impl=ring_shift=mine:shift", "--expect-communication=permute=p", "--report=report.md"
    done = pytest_given(tmp_path, *given, "--laws=value,communication", "--hypothesis-profile=ci")  # both find both
    failed = int(re.findall(r"(\d+) failed", done.stdout)[0])
    assert failed == 2
    assert len(re.findall(r"^FAILED .*: value: mesh \(dp=2\)", done.stdout, re.MULTILINE)) == 2
    for text in (done.stdout, (tmp_path / "report.md").read_text()):
        assert text.count("first wrong element") == 1
        assert text.count("wrong in the same way under 1 more check:") == 2
        assert re.search(r"\n    value: mesh .* \[xla\]: ", text)
        assert re.search(r"\n    communication: mesh .* \[xla\]: ", text)
        assert "communication NOT as expected: ring_shift[shift]: communication: mesh" in text
        assert "communication as expected" not in text


@pytest.mark.lengthy
def test_check_says_what_it_does(tmp_path: Path) -> None:
    """Its progress is on standard error, with the devices that XLA runs on; what it raises shows none of its code."""
    (tmp_path / "test_mine.py").write_text(
        "import jax\nfrom shardproof import check\nfrom shardproof.properties.report import progress\n"
        f"from {__name__} import wrong_everywhere\n\n"
        "jax.devices()\nprogress.QUIET_SECONDS = progress.TERMINAL_SECONDS = 0.0\n\n\n"
        "def test_shift():\n    check('ring_shift', wrong_everywhere, laws=['value', 'type'], max_examples=40)\n"
    )
    environment = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "COLUMNS": "200", "XLA_FLAGS": ""}
    done = python(*PYTEST, "test_mine.py", folder=tmp_path, **environment)
    assert "1 failed" in done.stdout
    assert "check ring_shift[wrong_everywhere]: on simulate (1 of 2)" in done.stdout
    assert "(1 of 2): value violated on mesh (" in done.stdout
    assert 'XLA ran on 1 device: jax.config.update("jax_num_cpu_devices", 8)' in done.stdout
    assert "find_violation" not in done.stdout
    assert "raise AssertionError" not in done.stdout
