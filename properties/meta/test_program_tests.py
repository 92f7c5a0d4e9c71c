"""A user's own programs as pytest tests in their own project: runs, failures, replays and regressions."""

import dataclasses
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Unpack, get_type_hints

import pytest

from shardproof.properties.contracts.described import Array
from shardproof.properties.meta.runs import PYTEST, ROOT, Done, in_terminal, pytest_run, python
from shardproof.properties.meta.whole_programs import mlp, numpy_mlp
from shardproof.properties.report.checking import check_program
from shardproof.properties.report.failures.replay import OF_PROGRAMS
from shardproof.properties.report.plugin import nothing_selected
from shardproof.properties.report.program_tests import program_test
from shardproof.properties.report.session import COUNTED
from shardproof.properties.runner.named import held_by_a_module
from shardproof.properties.runner.programs import Description, Program

PROJECT = '''
"""A user's own tests."""
from jax import lax
from shardproof import Program, program_test


def total(x, *, data):
    """The bug is that it is added up on one axis only."""
    axes = data if isinstance(data, str) else data[:1]
    return lax.psum(x.sum(0), axes)


TOTAL = Program(total, lambda x: x.sum(0), arguments=("batch@data n",), results="n", dtypes=["float32"])
test_total = program_test(TOTAL, laws=["value", "type"], max_examples=200)


def test_another():
    """It is their own."""
'''
"""A program with a bug that shows on a tuple of axes."""

RIGHT = PROJECT.replace("data[:1]", "data")
MLP = Program(
    mlp,
    numpy_mlp,
    arguments=("batch@data embed", "embed hidden@model", "hidden@model embed"),
    results="batch@data embed",
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with such tests, which are imported as their settings say."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_total.py").write_text(PROJECT)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\nfilterwarnings = error\n")
    return tmp_path


def ran(project: Path, *options: str) -> Done:
    """A run of their pytest."""
    return pytest_run(*options, folder=project)


def found_in(done: Done) -> tuple[str, str]:
    """The headline and the file of the first failure."""
    headline = re.search(r"\n(total: value(?: under [^:]*)?: mesh .*)\n", done.stdout)
    file = re.search(r"\n  pytest tests/test_total.py --replay=(\S+\.json)\n", done.stdout)
    assert headline, done.stdout
    assert file, done.stdout
    return headline[1], file[1]


def test_a_program_has_a_test_for_each_engine(project: Path) -> None:
    """`program_test` makes one test for each engine on which a law has something to ask, and others print no table."""
    assert "what was verified" not in ran(project, "-k", "another").stdout
    assert engines_of(program_test(MLP)) == ["simulate", "xla"]
    assert engines_of(program_test(MLP, laws="agreement")) == ["xla"]


def engines_of(test: Any) -> list[str]:
    """The engines of the tests."""
    return [one.values[0] for one in test.pytestmark[0].args[1]]


def test_a_run_that_checks_nothing_ends_with_a_sentence(project: Path) -> None:
    """It names the expression that selects no test."""
    done = ran(project, "-k", "totl")
    output = "ERROR: -k 'totl': nothing was checked: expected an expression that selects a test\n"
    assert (done.returncode, output in done.stdout) == (pytest.ExitCode.NO_TESTS_COLLECTED, True), done.stdout


def test_a_file_that_is_missing_is_reported_before_an_expression(tmp_path: Path) -> None:
    """Under pytest-xdist pytest itself says nothing of it."""
    (tmp_path / "test_total.py").touch()
    for file, output in (
        ("test_ttl.py::test", "test_ttl.py: no such file"),
        ("test_total.py", "-k 'totl': nothing was"),
    ):
        config: Any = SimpleNamespace(
            option=SimpleNamespace(pyargs=False),
            args=[file],
            invocation_params=SimpleNamespace(dir=tmp_path),
            getoption={"keyword": "totl", "markexpr": "", "collectonly": False}.get,
        )
        (line,) = nothing_selected(config, pytest.ExitCode.NO_TESTS_COLLECTED)
        assert line.startswith(output)


@pytest.mark.lengthy
def test_programs_have_the_options_and_their_settings(project: Path) -> None:
    """A report is written, and engines, laws and devices are chosen, by an option or by the project's settings."""
    (project / "tests" / "test_total.py").write_text(RIGHT)
    chosen = ("tests", "--report=report.json", "--engine=xla", "--laws=value", "--devices=3")
    done = ran(project, *chosen)
    assert "2 passed, 1 deselected" in done.stdout, done.stdout
    report = json.loads((project / "report.json").read_text())
    assert [(entry["law"], entry["engine"]) for entry in report["verified"]] == [("value", "xla")]
    assert report["header"][0].endswith(", 3 cpu devices")
    settings = "shardproof_report = set.md\nshardproof_engine = simulate\n"
    (project / "pytest.ini").write_text(f"{(project / 'pytest.ini').read_text()}{settings}")
    done = ran(project, "-n1", "--laws=type")
    assert "2 passed" in done.stdout, done.stdout
    assert "| total |" in (project / "set.md").read_text()
    assert "ERROR: --laws='valu': no such law; did you mean 'value'?" in ran(project, "--laws=valu").stderr
    (project / "tests" / "test_total.py").write_text("def test_other():\n    pass\n")
    assert "--report=set.md: not written: only tests made by program_test" in ran(project, "-n1").stdout
    (project / "tests" / "test_total.py").write_text(RIGHT)
    (project / "conftest.py").write_text("def pytest_addoption(parser):\n    parser.addoption('--engine')\n")
    assert "test_total[xla]" in ran(project, "--collect-only", "-q", "--engine=theirs").stdout


@pytest.mark.lengthy
@pytest.mark.either_end
def test_a_terminal_shows_how_far_a_test_is(project: Path) -> None:
    """In the terminal of pytest, which captures what tests print, a line has the structures and the time left."""
    (project / "tests" / "test_total.py").write_text(RIGHT)
    shown = in_terminal(*PYTEST, "tests", "--engine=simulate", "--laws=value", folder=project, PYTHONPATH=str(ROOT))
    assert re.search(rb"\rcheck total: on simulate \(1 of 1\): \d+ of 200 structures, 0:0\d:\d\d left ", shown), shown
    assert b"2 passed" in shown


OF_ANOTHER: dict[str, dict[str, Any]] = {
    "roles=": {"roles": [["model", "dp"]]},
    "parameter='op'": {"params": [["op", "sum"]]},
    "operands: 0 given": {"operands": []},
    "test_total:TOTAL is total: the failure is of other": {"contract": "other"},
}
"""Changes that make the case of a file one of another program, or of other arguments, and why it is refused."""


@pytest.mark.lengthy
def test_a_failure_is_reported_replayed_kept_and_repaired(project: Path) -> None:
    """A failure is reported, replayed if it is of this program, kept, and passes once repaired; with workers too."""
    first = ran(project)
    assert first.returncode == 1
    assert "2 failed, 1 passed" in first.stdout, first.stdout
    assert "wrong in the same way under 1 more check" in first.stdout
    assert re.search(r"value +simulate +VIOLATED", first.stdout)
    assert re.search(r"value +xla +VIOLATED", first.stdout)
    assert re.search(r"type +simulate +held", first.stdout)
    assert "XLA ran on" not in first.stdout
    assert "FAILED tests/test_total.py::test_total[simulate] - total: value: mesh" in first.stdout
    headline, file = found_in(first)
    text = first.stdout[first.stdout.index(f"\n{headline}\n") :].partition("  python ")[0]
    spread = ran(project, "-n2", "--dist=load")
    assert "2 failed, 1 passed" in spread.stdout, spread.stdout
    assert "=== what was verified ===" in spread.stdout
    assert headline in spread.stdout

    again = ran(project, "tests/test_total.py", f"--replay={file}")
    assert again.returncode == 1
    assert text in again.stdout
    named = ran(project, f"--replay={file}", "--impl=tests.test_total:TOTAL")
    assert (named.returncode, text in named.stdout) == (1, True), named.stdout
    unnamed = ran(project, f"--replay={file}")
    assert "total: expected --impl MODULE:PROGRAM, or the file with its program_test, as well" in unnamed.stdout
    (project / "changed").mkdir()
    for number, changes in enumerate(OF_ANOTHER.values()):
        content = json.loads((project / file).read_text())
        content["case"] |= changes
        (project / "changed" / f"{number}.json").write_text(json.dumps(content))
    others = ran(project, "tests/test_total.py", "--replay=changed")
    assert f"{len(OF_ANOTHER)} failed" in others.stdout, others.stdout
    for number, reason in enumerate(OF_ANOTHER):
        assert re.search(rf"\n{project}/changed/{number}.json: .*{re.escape(reason)}", others.stdout), others.stdout
    assert "Traceback" not in others.stdout

    kept = project / "tests" / OF_PROGRAMS / Path(file).name
    kept.parent.mkdir()
    shutil.copy(project / file, kept)
    regression = f"test_total[regression-{kept.stem}]"
    later = ran(project, "-x")
    assert f"FAILED tests/test_total.py::{regression} - {headline}" in later.stdout, later.stdout

    (project / "tests" / "test_total.py").write_text(RIGHT)
    assert ran(project, "tests/test_total.py", f"--replay={file}").returncode == 0
    assert "4 passed" in ran(project).stdout
    kept.write_text("{")
    refused = ran(project, "-k", "regression")
    assert "1 failed" in refused.stdout
    assert f"{kept}: not JSON" in refused.stdout


@pytest.mark.lengthy
def test_once_values_are_wrong_what_follows_is_left_out(project: Path) -> None:
    """The law of agreement is not checked where values are wrong, which is reported; it is if XLA is selected alone."""
    file = project / "tests" / "test_total.py"
    file.write_text(PROJECT.replace('["value", "type"]', '["value", "agreement"]'))
    done = ran(project, "-rs")
    assert re.search(r"2 failed, 1 passed", done.stdout), done.stdout
    assert not re.search(r"agreement +xla +(held|VIOLATED)", done.stdout)
    assert "not checked, since the values are wrong" in done.stdout, done.stdout
    file.write_text(PROJECT.replace('["value", "type"]', '["agreement"]'))
    alone = ran(project, "-rs")
    assert re.search(r"agreement +xla +(held|VIOLATED)", alone.stdout), alone.stdout


@pytest.mark.lengthy
def test_a_program_that_ends_its_process_is_given_and_replayed(project: Path) -> None:
    """An abort of a program ends neither the run nor its replay, and its regression runs in another process."""
    source = "import os\n" + RIGHT.replace(
        "    axes =", "    if lax.axis_size(data) == 2:\n        os.abort()\n    axes ="
    )
    (project / "tests" / "test_total.py").write_text(source)
    done = ran(project, "--impl=tests.test_total:TOTAL", "--hypothesis-profile=ci", "--laws=value", "-k", "simulate")
    headline, file = found_in(done)
    assert headline.endswith("aborts the process (SIGABRT)")
    again = ran(project, "tests/test_total.py", f"--replay={file}")
    assert (again.returncode, headline in again.stdout) == (1, True)
    ended = python(project / file.replace(".json", ".py"), folder=project)
    assert ended.returncode == 1, ended.stderr
    (project / "tests" / OF_PROGRAMS).mkdir()
    shutil.copy(project / file, project / "tests" / OF_PROGRAMS)
    later = ran(project, "-k", "regression")
    assert "1 failed" in later.stdout
    assert headline in later.stdout


@pytest.mark.lengthy
def test_a_program_that_no_module_holds_has_no_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure of a program that no module holds has a script and no replay."""
    monkeypatch.chdir(tmp_path)
    inner = Program(lambda x, *, data: x + 1, lambda x: x, arguments=("n@data",), results="n@data")
    assert held_by_a_module(inner) is None
    with pytest.raises(AssertionError, match=r"lambda_: value: ") as raised:
        check_program(inner, laws="value", max_examples=2)
    assert re.search(r"\n  python \S+\.py$", str(raised.value), re.MULTILINE)
    assert "--replay" not in str(raised.value)
    held = held_by_a_module(MLP)
    assert held is not None
    assert (held.module, held.qualname) == (__name__, "MLP")


def test_a_program_says_all_that_it_is_about() -> None:
    """A Program is checked by itself, and wrong calls of check_program and program_test are refused."""
    summary = check_program(MLP, laws="value", max_examples=2)
    assert {tally.outcome for tally in summary.tallies} == {"passed"}
    with pytest.raises(ValueError, match="mlp: expected nothing beside a Program"):
        check_program(MLP, numpy_mlp)
    with pytest.raises(ValueError, match="reference: expected the same function on whole arrays"):
        check_program(mlp)
    with pytest.raises(ValueError, match="results: is missing: a description of each array"):
        check_program(mlp, numpy_mlp, arguments=("n@data",))
    with pytest.raises(ValueError, match="laws='values': no such law; did you mean 'value'"):
        program_test(MLP, laws="values")
    with pytest.raises(ValueError, match="expected a Program"):
        program_test(mlp)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected one that applies to ids"):
        program_test(IDS, laws="gradient")


def test_check_program_takes_what_a_program_does() -> None:
    """The keyword arguments of check_program have the names and types of those of a Program."""
    of_program = get_type_hints(Program)
    described = [field.name for field in dataclasses.fields(Program) if field.name not in ("function", "reference")]
    assert get_type_hints(Description) == {name: of_program[name] for name in described}
    assert get_type_hints(check_program)["description"] == Unpack[Description]


def ids(x: Any, *, data: Any) -> Any:
    """Integers as they are."""
    return x


IDS = Program(ids, lambda x: x, arguments=(Array("n@data", "int32"),), results=Array("n@data", "int32"))


def test_the_counts_of_a_test_say_what_is_stated(request: pytest.FixtureRequest) -> None:
    """The tallies of a test have the conditions of its program, as those of `check_program` have."""
    program = Program(lambda x, *, data: x, lambda x: x, arguments=("n@data",), results="n@data", sizes={"n": 8})
    program_test(program, laws="type", max_examples=1)("simulate", request)
    (tally,) = request.node.stash[COUNTED]
    del request.node.stash[COUNTED]
    assert tally.stated == ("sizes: n in (8,)",)
