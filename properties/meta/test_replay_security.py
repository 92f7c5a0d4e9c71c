"""A file that is replayed is data: whoever wrote it, it runs nothing, ends nothing, and is judged or refused."""

import ast
import dataclasses
import functools
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardproof.impl import collectives
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts import CONTRACTS, Scope
from shardproof.properties.laws.law import LAWS
from shardproof.properties.meta.hostile import MARK, PAYLOADS, hostile_files, watched
from shardproof.properties.meta.test_failures_replay import pytest_run
from shardproof.properties.programs.expectation import Expectation, ExpectationError
from shardproof.properties.programs.implementations import IMPLEMENTATIONS, Implementation
from shardproof.properties.programs.violation import Broken, Kind
from shardproof.properties.report.failures.plugin import KEPT_NAME
from shardproof.properties.report.failures.record import Recorded, parse, record
from shardproof.properties.report.failures.replay import MOST_BYTES, REGRESSIONS, files, read
from shardproof.properties.report.scripts import sent
from shardproof.properties.report.scripts.literals import comment, docstring, quoted
from shardproof.properties.report.scripts.script import script
from shardproof.properties.runner.given import Given
from shardproof.properties.runner.lookup import Lookup
from shardproof.properties.runner.named import Named, NotAFailure
from shardproof.properties.runner.preconditions import PARAMETERS, check_case, check_oracle
from shardproof.properties.runner.violation import LawViolation

pytestmark = pytest.mark.either_end

MESH = MeshCase(("dp", "tp"), (2, 2), (3, 1, 0, 2), ("auto", "explicit"))
SMALL = Operand((2,), "float32", Placement((("tp",),), ("dp",)))
BASE = Case("ring_shift", MESH, ("tp", "dp"), (SMALL,), (("offset", 1),), (Data("distinct", 3),))


def a_case(contract: str, *, operands: tuple[Operand, ...] = (SMALL,), **changes: Any) -> Case:
    """A case on four devices."""
    return dataclasses.replace(BASE, contract=contract, operands=operands, **changes)


PRODUCT = (
    Operand((2, 1), "bfloat16", Placement(((), ("dp", "tp")))),
    Operand((1, 3), "bfloat16", Placement((("dp", "tp"), ()))),
)
SHIFT = "ring_shift"
FOUND: tuple[tuple[str, str, Case, Kind, str], ...] = (
    ("value", "xla", BASE, "values", "2 of 4 blocks wrong"),
    ("value", "simulate", a_case("permute", params=(("perm", ((0, 1), (2, 0))),)), "aborts", "aborts the process"),
    ("gradient", "simulate", a_case("all_reduce", params=(("op", "sum"),)), "values", "3 of 4 tangent blocks wrong"),
    ("transformation", "xla", a_case(SHIFT, chain=("vmap",)), "raises", "raises ValueError: no"),
    ("error", "simulate", a_case(SHIFT, axis_name=("tp", "no_such"), forbidden="axis_name"), "accepted", "is accepted"),
    ("type", "xla", a_case(SHIFT, out=(Placement(((),), ("dp", "tp")),)), "out_specs", "out_specs is refused"),
    ("communication", "simulate", a_case("broadcast", params=(("root", 1),)), "communication", "sends 3 permutes"),
    (
        "value", "simulate",
        a_case("all_gather", params=(("axis", 0), ("tiled", True), ("axis_index_groups", ((0, 2), (1, 3))))),
        "values", "wrong",
    ),
    ("value", "simulate", a_case("matmul_all_reduce", operands=PRODUCT, params=()), "values", "1 of 4 blocks wrong"),
)  # fmt: skip


def own(contract: str) -> Implementation:
    """This project's own implementation of a contract."""
    return next(i for i in IMPLEMENTATIONS if i.contract == contract)


@functools.cache
def originals() -> tuple[str, ...]:
    """Failures as they are written: of every kind of script, on both engines."""
    texts = []
    for law, engine, case, kind, finding in FOUND:
        broken = Broken(kind, finding, data=case.data[0])
        violation = LawViolation(own(case.contract), LAWS[law], case, engine, broken)
        texts.append(json.dumps(record(violation), indent=1))
    return tuple(texts)


def written_script(recorded: Recorded) -> str:
    """The script that would be written of a file, with all of its texts in it."""
    function = own(recorded.case.contract).function
    implementation = Implementation(recorded.case.contract, recorded.implementation.name, function)
    broken = Broken(recorded.violated, recorded.finding)
    return script(LawViolation(implementation, LAWS[recorded.law], recorded.case, recorded.engine, broken))


IMPORTED = {
    "base64", "collections", "fractions", "jax", "math", "numpy", "os", "resource", "shardproof", "subprocess", "sys",
    "typing", "zlib",
}  # fmt: skip


def check_script(text: str) -> None:
    """It is Python, imports what scripts import, and has a file's words in strings only."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            assert {name.partition(".")[0] for name in names} <= IMPORTED
        for field, value in ast.iter_fields(node):
            assert isinstance(node, ast.Constant) or not (isinstance(value, str) and MARK in value), (field, value)
    assert all(line.isprintable() for line in text.split("\n"))


def handled(content: bytes, path: Path) -> bool:
    """Whether a file is accepted, then with a harmless script; it runs nothing, and is refused in one line if not."""
    path.write_bytes(content)
    refused = None
    with watched() as seen:
        try:
            recorded = read(path)
            Lookup(recorded.implementation).source()
            check_oracle(recorded.law, recorded.case)
        except (NotAFailure, ValueError) as error:
            refused = str(error)
    assert seen == []
    if refused is not None:
        assert refused.isprintable()
        assert len(refused) < 800
        return False
    check_script(written_script(recorded))
    return True


@pytest.fixture(scope="module", autouse=True)
def scripts_of_right_functions() -> Iterator[None]:
    """What these files accuse is right, and the script of what is sent would not be written: here its text is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sent, "check_that_it_shows", lambda *given, **more: None)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for files."""
    return tmp_path_factory.mktemp("hostile")


def test_what_is_recorded_is_accepted(folder: Path) -> None:
    """The files that the others are made of are accepted, and their scripts are what scripts should be."""
    for text in originals():
        assert handled(text.encode(), folder / "original.json")
        check_oracle(parse(text).law, parse(text).case)


@settings(max_examples=300)
@given(content=st.deferred(lambda: hostile_files(originals())))
def test_no_file_runs_anything(folder: Path, content: bytes) -> None:
    """Whatever a file holds is refused in one line, or stands in a script as the text of a string."""
    handled(content, folder / "hostile.json")


@pytest.mark.lengthy
def test_hostile_files_end_no_session(tmp_path: Path) -> None:
    """Every file of a folder of hostile ones is judged or refused by itself, and so is the good one among them."""
    count = itertools.count()

    @settings(max_examples=60, derandomize=True, database=None)
    @given(hostile_files(originals()))
    def write(content: bytes) -> None:
        (tmp_path / f"{next(count)}.json").write_bytes(content)

    write()
    (tmp_path / "good.json").write_text(originals()[0])
    (tmp_path / "large.json").write_bytes(b" " * (MOST_BYTES + 1))
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "dangling.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "line\nbreak.json").write_text("{")
    done = pytest_run(f"--replay={tmp_path}", "-rA", folder=tmp_path)
    assert done.returncode == 1, done.stdout
    assert "\nPASSED good.json::good\n" in done.stdout
    assert f"\n{tmp_path}/large.json: larger than {MOST_BYTES} bytes\n" in done.stdout
    assert f"\n{tmp_path}/line\\nbreak.json: not JSON" in done.stdout
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(MARK)]
    assert "Traceback" not in done.stdout
    assert "During handling" not in done.stdout
    assert "INTERNALERROR" not in done.stdout + done.stderr


def named(**changes: Any) -> Named:
    """What a file says of a function."""
    return dataclasses.replace(Named("ring_shift", "mine", "mine", "shift"), **changes)


SOURCE = """
open("imported", "w").close()


def shift(x, axis_name, *, offset=1):
    return x


def other(x):
    return x
"""


def test_a_replay_imports_from_below_the_working_directory_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of Python's library, installed packages, hidden folders or elsewhere, nor what lacks the function."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for place in (here, here / ".hidden", here / "site-packages", elsewhere):
        place.mkdir()
        (place / "brought.py").write_text(SOURCE)
    (here / "brought.py").unlink()
    (here / "runs.py").write_text("open('imported', 'w').close()")
    (here / "leaves.py").write_text(f"import sys\n{SOURCE}\nsys.exit(0)")
    (here / "numpy.py").write_text(SOURCE.replace("shift", "roll"))
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for changes, reason in (
        ({"module": "os", "qualname": "system"}, "Python's own library"),
        ({"module": "subprocess", "qualname": "run"}, "Python's own library"),
        ({"module": "builtins", "qualname": "exec"}, "Python's own library"),
        ({"module": "__main__", "qualname": "shift"}, "not a function of a module"),
        ({"module": "mine; import os"}, "not a function of a module"),
        ({"module": "mine", "qualname": "__class__.__base__()"}, "not a function of a module"),
        ({"module": "numpy", "qualname": "load"}, "is not defined below"),
        ({"module": "numpy", "qualname": "roll"}, "Python finds another module"),
        ({"module": "jax.lax", "qualname": "psum"}, "is not defined below"),
        ({"module": "brought", "path": str(elsewhere / "brought.py")}, "is not defined below"),
        ({"module": "brought", "path": str(here / ".hidden" / "brought.py")}, "is not defined below"),
        ({"module": "brought", "path": str(here / "site-packages" / "brought.py")}, "is not defined below"),
        ({"module": "brought", "path": f"{here}/../elsewhere/brought.py"}, "is not defined below"),
        ({"module": "runs"}, "is not defined below"),
        ({"module": "x" * 900}, "is not defined below"),
    ):
        with pytest.raises(NotAFailure, match=reason) as caught:
            Lookup(named(**changes)).load()
        assert str(caught.value).isprintable()
    assert not list(tmp_path.rglob("imported"))
    with pytest.raises(NotAFailure, match="cannot be imported: SystemExit"):
        Lookup(named(module="leaves")).load()


def test_a_function_below_the_working_directory_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the signature of its contract; one from elsewhere is imported once --impl names it."""
    (tmp_path / "shifts_below.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    lookup = Lookup(named(module="shifts_below"))
    assert lookup.source() == tmp_path / "shifts_below.py"
    assert lookup.load().function.__module__ == "shifts_below"
    with pytest.raises(NotAFailure, match="cannot be called as"):
        Lookup(named(module="shifts_below", qualname="other")).load()
    installed = named(module="shardproof.impl.collectives", qualname="ring_shift")
    with pytest.raises(NotAFailure, match=r"--impl ring_shift=shardproof.impl.collectives:ring_shift"):
        Lookup(installed).load()
    given = Given.parse("ring_shift=shardproof.impl.collectives:ring_shift")
    assert Lookup(installed, (given,)).load().function is collectives.ring_shift


@pytest.mark.parametrize("payload", PAYLOADS)
def test_no_text_leaves_its_literal(payload: str) -> None:
    """A string, a comment and a docstring hold any text, and nothing else comes of it."""
    assert ast.literal_eval(quoted(payload)) == payload
    lines = [comment(payload), f"x = {quoted(payload)}", *docstring([payload, f'"{payload}"'])]
    tree = ast.parse("\n".join(lines))
    assert [type(node) for node in tree.body] == [ast.Assign, ast.Expr]


@pytest.mark.parametrize("payload", PAYLOADS)
def test_no_axis_is_called_what_could_be_code(payload: str) -> None:
    """The names of axes are identifiers, wherever a mesh comes from."""
    if payload.isidentifier() and len(payload) < 100:
        assert MeshCase((payload,), (1,)).axis_names == (payload,)
    else:
        with pytest.raises(ValueError, match="axis_names"):
            MeshCase((payload,), (1,))


def test_an_axis_name_that_xla_aborts_on_is_refused() -> None:
    """XLA ends the process on names that are not ASCII."""
    with pytest.raises(ValueError, match="expected ASCII identifiers"):
        MeshCase(("é",), (1,))


@settings(max_examples=200)
@given(data=st.data())
def test_what_a_law_draws_can_be_read_again(data: st.DataObject) -> None:
    """No case of any law, of any implementation, is refused once it is written down."""
    implementation = data.draw(st.sampled_from(IMPLEMENTATIONS))
    law = data.draw(st.sampled_from(list(LAWS.values())))
    assume(law.asks(implementation))
    case = data.draw(law.cases(implementation, Scope(large=4096 if law.large else 0)))
    violation = LawViolation(implementation, law, case, law.engines[0], Broken("values", "wrong"))
    assert parse(json.dumps(record(violation))).case == case
    if case.mesh.size < 64:
        check_oracle(law.name, case)


def test_some_operands_may_vary_along_a_part_of_the_tuple() -> None:
    """A pipeline's weights may, although its x may be wrong, and is so by name: in another way."""
    weights = Operand((1, 1), "float32", Placement((("tp",), ())))
    x = Operand((1, 1, 1), "float32", Placement(((), (), ())))
    case = Case("pipeline", MeshCase(("dp", "tp"), (1, 1)), ("dp", "tp"), (weights, x), (), (Data("real", 0),))
    check_case("value", case)
    reduced = dataclasses.replace(case, contract="all_reduce", operands=(weights,)).with_params(op="sum")
    with pytest.raises(ValueError, match=r"^x: not as the contract of all_reduce demands"):
        check_case("value", reduced)


@pytest.mark.lengthy
@pytest.mark.parametrize("contract", [name for name, contract in CONTRACTS.items() if contract.violations])
def test_what_is_forbidden_can_be_read_again(contract: str) -> None:
    """Whatever a case of the law of errors has wrong is found to be wrong, on the smallest shapes as well."""
    law, implementation = LAWS["error"], next(i for i in IMPLEMENTATIONS if i.contract == contract)

    @settings(max_examples=60, derandomize=True, database=None, deadline=None)
    @given(law.cases(implementation, Scope()))
    def check(case: Case) -> None:
        check_oracle("error", case)

    check()


def test_every_parameter_is_checked() -> None:
    """A contract's keyword arguments have a type and bounds that a file is held to."""
    for contract in CONTRACTS.values():
        assert set(contract.parameters) <= {*PARAMETERS, *contract.options}


@pytest.mark.parametrize("name", ["a b", "-x", ".hidden", "..", "$(touch pwned)", "a/b", "a\n", "é", "x" * 201])
def test_a_regression_is_kept_under_a_plain_name(name: str) -> None:
    """What could be taken for an option, a path or a command names no file of this project."""
    assert KEPT_NAME.fullmatch(name) is None
    assert all(KEPT_NAME.fullmatch(path.stem) for path in REGRESSIONS.glob("*.json"))


def test_a_regression_of_another_name_is_refused(tmp_path: Path) -> None:
    """One line says so, and nothing is written."""
    path = tmp_path / "a\nb $(touch pwned).json"
    path.write_text(originals()[0])
    done = pytest_run(f"--keep-regression={path}", folder=tmp_path)
    assert done.returncode == 4
    assert "a\\nb $(touch pwned).json: expected a name of letters" in done.stderr
    assert [inside.name for inside in tmp_path.iterdir()] == [path.name]


def test_a_path_that_pytest_cannot_take_is_refused(tmp_path: Path) -> None:
    """One line names the file: pytest would take it for the name of a test."""
    (tmp_path / "a::b[c].json").write_text(originals()[0])
    with pytest.raises(NotAFailure, match="pytest takes no path"):
        files(tmp_path)


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('touch pwned')", "(0-8)**(1/2)", "9**9**9**9", "log2(0)", "ceil(p", "p if p",
        "(" * 190 + "p" + ")" * 5, "1e999", "p.__class__", "[p for p in n]", "lambda: p", "n" * 401, "0**-1", "\x00",
        "p\u2028+1", "1j", "True", "'a'*9", "sum(i for i in range(9**9))",
        "sum(sum(1 for j in range(p)) for i in range(p))", "*".join(["(2**64)**64"] * 16),
    ],
)  # fmt: skip
def test_no_expectation_is_more_than_arithmetic(expression: str) -> None:
    """Whatever is no small expression in p and n is refused in one line."""
    with watched() as seen, pytest.raises(ExpectationError) as caught:
        Expectation.parse(f"bytes={expression}")
    assert seen == []
    assert str(caught.value).isprintable()
