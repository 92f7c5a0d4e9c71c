"""A recorded failure is data that can be run again; what was not written by this version is refused in one line."""

import dataclasses
import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts import CONTRACTS, Scope, contract_of
from shardproof.properties.engines import ENGINES, XlaEngine
from shardproof.properties.laws import LAWS
from shardproof.properties.laws.drawing import drawn_for
from shardproof.properties.laws.law import LawViolation
from shardproof.properties.meta.runs import ROOT, Done, pytest_run, work_in
from shardproof.properties.programs.built_in import IMPLEMENTATIONS
from shardproof.properties.programs.expectation import Expectation
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import Broken, Kind
from shardproof.properties.report.failures.files import (
    Recorded,
    failing_case,
    identity,
    parse,
    record,
    replace,
    replay_command,
    write,
)
from shardproof.properties.report.failures.replay import MOST_BYTES, files, read, repeat, source_of
from shardproof.properties.runner.given import Given
from shardproof.properties.runner.judging import applicable_laws, judge
from shardproof.properties.runner.named import BuiltIn
from shardproof.properties.runner.preconditions import NotAFailure, check_case, check_oracle
from shardproof.properties.runner.programs import Program
from shardproof.properties.runner.tally import Tally

MINE = '''
"""A user's module."""
from jax import lax
from shardproof.impl.collectives import permute


def ring_shift(x, axis_name, *, offset=1):
    """Numbers a tuple in mesh order."""
    axes = (axis_name,) if isinstance(axis_name, str) else tuple(sorted(axis_name))
    p = lax.axis_size(axes)
    return permute(x, axes, perm=[(i, (i + offset) % p) for i in range(p)])
'''
CASE = Case(
    CONTRACTS["ring_shift"],
    MeshCase(("dp", "tp"), (2, 2)),
    ("tp", "dp"),
    (Operand((1,), "float32", Placement((("dp", "tp"),))),),
    (("offset", 1),),
    (Data("exact", 0), Data("distinct", 1)),
)
LAX = next(i for i in IMPLEMENTATIONS if i.contract.name == "ring_shift")


def found(
    implementation: Implementation = LAX, case: Case = CASE, finding: str = "2 of 4 blocks wrong"
) -> LawViolation:
    """A violation of the law of values, on the second data set."""
    return LawViolation(implementation, LAWS["value"], case, "xla", Broken("values", finding, data=case.data[1]))


def changed(**parts: Any) -> str:
    """A record with other parts, dotted names reaching into it."""
    content = record(found())
    for path, value in parts.items():
        *outer, last = path.split("__")
        target = content
        for key in outer:
            target = target[key]
        target[last] = value
    return json.dumps(content)


@st.composite
def records(draw: st.DrawFn) -> Recorded:
    """Failures of any built-in implementation, under any law on what it is asked of, shrinking to a simple one."""
    implementation = draw(st.sampled_from(IMPLEMENTATIONS[:40]))
    engine = draw(st.sampled_from([*ENGINES]))
    drawn = draw(drawn_for(implementation, Scope(), eager=engine == "xla"))
    pairs = [(law, law.of(case)) for law in applicable_laws(implementation, engine) for case in drawn]
    law, case = draw(st.sampled_from([(law, case) for law, case in pairs if case is not None]))
    return Recorded(
        headline=draw(st.text(max_size=50)),
        law=law.name,
        name=implementation.name,
        built_in=draw(st.booleans()),
        program=draw(st.text(max_size=10)),
        engine=engine,
        violated=draw(st.sampled_from(get_args(Kind))),
        finding=draw(st.text(max_size=50)),
        case=case,
    )


@settings(max_examples=30)
@given(recorded=records())
def test_every_failure_survives_its_json(recorded: Recorded) -> None:
    """A failure that is written is read again, equal in every field: cases of all laws, with any words."""
    text = msgspec.json.encode(dataclasses.replace(recorded, case=recorded.case.named())).decode()
    assert parse(text) == recorded
    assert Case.from_json(recorded.case.to_json(), contract_of) == recorded.case


@settings(max_examples=30)
@given(data=st.data())
def test_a_case_of_the_error_law_has_something_wrong(data: st.DataObject) -> None:
    """Forbidden cases that are drawn are accepted, and a valid case that is only said to be wrong is not."""
    implementation = data.draw(st.sampled_from(IMPLEMENTATIONS))
    contract, scope = implementation.contract, Scope()
    if LAWS["error"].applies_to(implementation, "simulate"):
        _, case = data.draw(drawn_for(implementation, scope).filter(lambda drawn: len(drawn) == 2))
        assert case.forbidden
        check_case("error", case)
        check_oracle("error", case)
    if contract.violations:
        valid = data.draw(contract.cases(scope))
        forbidden = dataclasses.replace(valid, forbidden=contract.violations[0].argument)
        with pytest.raises(ValueError, match="nothing is wrong with it"):
            check_oracle("error", forbidden)


def test_a_failure_is_recorded_with_the_data_that_shows_it() -> None:
    """The file names no function to import: a built-in implementation is found in the table, by contract and name."""
    recorded = parse(json.dumps(record(found())))
    assert (recorded.law, recorded.engine, recorded.finding) == ("value", "xla", "2 of 4 blocks wrong")
    assert recorded.case == failing_case(found()) == dataclasses.replace(CASE, data=(Data("distinct", 1),))
    assert source_of(recorded, ()) == BuiltIn("ring_shift", LAX.name)
    assert BuiltIn("ring_shift", LAX.name).load() is LAX
    repeat(recorded, BuiltIn("ring_shift", LAX.name), LAX)


def test_the_name_of_a_failure_is_readable_and_stable() -> None:
    """The same function, law and case have the same name, whatever was found; others have another."""
    name = identity(found())
    assert identity(found(finding="3 of 4 blocks wrong")) == name
    assert name.startswith("ring_shift-lax-value-")
    assert identity(found(case=dataclasses.replace(CASE, axis_name=("dp", "tp")))) != name


HOSTILE: dict[str, tuple[str | bytes, str]] = {
    "half a file": ('{"kind": "shardproof fail', "not JSON"),
    "another kind": ("[1, 2]", "not a failure of this suite: expected a JSON object with kind="),
    "not text": (b"\xff\xfe{", "not UTF-8"),
    "deep": ("[" * 100_000, "nested too deeply"),
    "a deep field": (changed(case=json.loads("[" * 500 + "]" * 500)), "case="),
    "long": ('"' + "x" * MOST_BYTES + '"', f"larger than {MOST_BYTES} bytes"),
    "another format": (changed(format=2), "format=2: expected 5: another version's"),
    "no format": (changed(format=True), "format=True: expected"),
    "a field more": (changed(command="rm"), "command: expected no such field"),
    "a field more inside": (changed(case__mesh__shell="rm"), "case.mesh.shell: expected no such field"),
    "a field less": (changed(case={}), "case={}: object missing required field `contract`"),
    "not a flag": (changed(built_in=1), "built_in=1: expected `bool`, got `int`"),
    "no law": (changed(law="speed"), "law='speed': expected one of value,"),
    "a kind": (changed(violated="evil"), "violated='evil': invalid enum value"),
    "an engine": (changed(engine="tpu"), f"engine='tpu': expected one of {', '.join(ENGINES)}"),
    "an engine of another law": (changed(law="agreement", engine="simulate"), "engine='simulate'"),
    "a path for an axis": (changed(case__axis_name="../../etc/passwd"), "axis_name='../../etc/passwd': expected an"),
    "many operands": (
        changed(case__operands=65 * [{"block": [1], "dtype": "int8", "placement": {"spec": [[]]}}]),
        "expected `array` of length <= 64",
    ),
    "a keyword for a role": (changed(case__roles=[["lambda", "tp"]]), "roles[0][0]='lambda': expected an identifier"),
    "no contract": (changed(case__contract="../mine"), "contract='../mine': expected an identifier"),
    "a long text": (changed(case__params=[["offset", "x" * 101]]), "expected one printable line of at most 100 char"),
    "an axis": (changed(case__axis_name=["xp"]), "axis_name=('xp',): expected distinct axes of the mesh"),
    "a parameter": (
        changed(case__params=[["offset", 1], ["shell", "rm"]]),
        "parameter='shell': expected one of offset",
    ),
    "no parameter": (changed(case__params=[]), "parameter='offset': not given"),
    "a huge parameter": (changed(case__params=[["offset", 10**400]]), "offset=10000"),
    "a quote": (changed(case__params=[["offset", '"""']]), "expected no quotes and no backslashes"),
    "a link": (changed(case__chain=["eval"]), "chain=('eval',): 'eval': expected some of"),
    "many links": (changed(case__chain=["vmap"] * 9), "expected at most 3 links, 2 of which batch"),
    "a chain of a law of calls": (
        changed(law="type", engine="simulate", case__chain=["vmap"]),
        "law='type': expected a case that it applies to, such as one that has a gradient",
    ),
    "a link of another law": (
        changed(law="agreement", case__chain=["eager"]),
        "law='agreement': expected a case that it applies to",
    ),
    "a link of another engine": (changed(engine="simulate", case__chain=["eager"]), "chain=('eager',)"),
    "a dtype": (changed(case__operands=[{"block": [1], "dtype": "O", "placement": {"spec": [[]]}}]), "dtype='O'"),
    "no operand": (changed(case__operands=[]), "operands: 0 given"),
    "a huge block": (
        changed(case__operands=[{"block": [2**40], "dtype": "int8", "placement": {"spec": [[]]}}]),
        f"case.operands[0].block[0]={2**40}: expected `int` <= {2**27}",
    ),
    "a huge mesh": (
        changed(case__mesh={"axis_names": ["dp"], "sizes": [10**12]}),
        "expected at most 16 axes and 65536",
    ),
    "many devices of XLA": (
        changed(case__mesh={"axis_names": ["dp", "tp"], "sizes": [1, 1], "devices": [1000]}),
        "devices=(1000,): expected numbers below 256",
    ),
    "a seed": (changed(case__data=[{"kind": "exact", "seed": -1}]), "case.data[0].seed=-1: expected `int` >= 0"),
    "devices that are the same": (
        changed(case__mesh={"axis_names": ["dp"], "sizes": [2], "devices": [0, 0]}),
        "expected 2 distinct device numbers",
    ),
    "a number as text": (
        changed(case__mesh={"axis_names": ["dp"], "sizes": ["2"]}),
        "case.mesh.sizes[0]='2': expected `int`, got `str`",
    ),
    "a kind of data": (changed(case__data=[{"kind": "pickle", "seed": 0}]), "kind='pickle': expected one of exact"),
    "no data": (changed(case__data=[]), "data: expected at least one data set"),
    "a string for a list": (changed(case__manual="tp"), "case.manual='tp': expected `array`, got `str`"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_with_its_name_and_the_reason(name: str, tmp_path: Path) -> None:
    """One line names the file, the field, its value and what was expected."""
    text, reason = HOSTILE[name]
    path = tmp_path / "broken.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(NotAFailure) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def a_broadcast(axis_name: Any = "tp", *, forbidden: str = "root", **given: Any) -> Case:
    """A forbidden case, whose root is one of two participants if `root` is."""
    return dataclasses.replace(
        CASE, contract=CONTRACTS["broadcast"], axis_name=axis_name, params=tuple(given.items()), forbidden=forbidden
    )


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (a_broadcast(root=2), ""),
        (a_broadcast(root=-1), ""),
        (a_broadcast(("tp", "no_such_axis"), root=2, forbidden="axis_name"), ""),
        (a_broadcast(root=1), "forbidden='root': nothing is wrong with it"),
        (a_broadcast(root=2, forbidden="axis_name"), "root=2: expected a value as broadcast takes it"),
        (a_broadcast("no_such_axis", root=0), "axis_name=('no_such_axis',): expected distinct axes of the mesh"),
        (a_broadcast(root="0"), "root='0': expected a value as broadcast takes it"),
    ],
    ids=str,
)
def test_a_forbidden_case_is_wrong_in_the_argument_it_names(case: Case, reason: str) -> None:
    """A case of the law of errors without a mistake, or with another one, means nothing."""
    with pytest.raises(ValueError, match=re.escape(reason)) if reason else nullcontext():
        check_case("error", case)
        check_oracle("error", case)


def mlp_bad(x: Any, *, data: Any) -> Any:
    """A function that is not `mlp`."""
    return x


def test_a_function_is_named_on_the_command_line_alone() -> None:
    """A file of a function that is not built in says so, and the message what to name, or that another was named."""
    theirs = parse(changed(built_in=False, name="mine"))
    with pytest.raises(NotAFailure, match=r"^ring_shift\[mine\]: expected --impl ring_shift=MODULE:FUNCTION as well"):
        source_of(theirs, [])
    given = Given("ring_shift", "mine", "shift")
    assert source_of(theirs, [given]) is source_of(parse(changed()), [given]) is given
    program = parse(changed(built_in=False, case__contract="mlp"))
    with pytest.raises(NotAFailure, match="mlp: expected --impl MODULE:PROGRAM, or the file with its program_test"):
        source_of(program, (), ())
    with pytest.raises(NotAFailure, match="mlp: expected --impl MODULE:PROGRAM as well"):
        source_of(program, ())
    gather = Given("all_gather", "mine", "gather")
    with pytest.raises(
        NotAFailure, match=r"^all_gather=mine:gather is all_gather: the failure is of ring_shift\[mine\]$"
    ):
        source_of(theirs, [gather])
    another = Program(function=mlp_bad, reference=lambda x: x, arguments=("n@data",), results="n@data")
    with pytest.raises(NotAFailure, match=r"^all_gather=.*, mine:BAD is mlp_bad: the failure is of mlp$"):
        source_of(program, [gather], [(another, Given("", "mine", "BAD"))])
    with pytest.raises(NotAFailure, match="name='mine': not an implementation of ring_shift in this project"):
        source_of(parse(changed(name="mine")), ()).load()


def test_a_folder_stands_for_the_failures_in_it(tmp_path: Path) -> None:
    """Every JSON file of a folder is replayed; an empty one is a mistake."""
    with pytest.raises(NotAFailure, match="expected a folder with"):
        files(tmp_path)
    with pytest.raises(NotAFailure, match="no such file"):
        files(tmp_path / "nothing.json")
    for name in ("b.json", "a.json", "c.py"):
        (tmp_path / name).write_text("")
    assert [path.name for path in files(tmp_path)] == ["a.json", "b.json"]


def test_a_script_in_place_of_its_failure_is_refused_by_name(tmp_path: Path) -> None:
    """The line names the file that is replayed."""
    for name in ("a.json", "a.py"):
        (tmp_path / name).write_text("import sys\n")
    with pytest.raises(NotAFailure, match=r"a\.py: expected a\.json, which has the failure as data"):
        read(tmp_path / "a.py")


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    """Writing leaves no temporary file, neither when it succeeds nor when it fails."""
    path = tmp_path / "folder" / "a.json"
    replace(path, "one")
    replace(path, "two")
    with pytest.raises(UnicodeEncodeError):
        replace(path, "\ud800")
    assert path.read_text() == "two"
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]


@pytest.mark.lengthy
@pytest.mark.parametrize("below", ["", "lib"])
def test_the_command_of_a_report_replays_it_until_it_is_fixed(
    below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run as it is printed, it fails with the same headline and text, with workers too, and passes after the repair."""
    (tmp_path / below).mkdir(exist_ok=True)
    module = work_in(tmp_path / below, monkeypatch, mesh_order_shift=MINE) / "mesh_order_shift.py"
    monkeypatch.chdir(tmp_path)
    import mesh_order_shift  # type: ignore[import-not-found]

    mine = Implementation(CONTRACTS["ring_shift"], "mine", mesh_order_shift.ring_shift)
    with pytest.raises(LawViolation) as caught:
        judge(LAWS["value"], mine, CASE, XlaEngine(), Tally("ring_shift", "mine", "value"))
    written = write(caught.value)
    prefix = f"PYTHONPATH={module.parent} " if below else ""
    assert written.replay == (f"{prefix}pytest --replay={written.case} --impl ring_shift=mesh_order_shift:ring_shift")

    def run(*more: str) -> Done:
        options = written.replay.removeprefix(prefix).split()[1:]
        return pytest_run(*options, *more, folder=tmp_path, root=Path(f"{ROOT}:{module.parent}"))

    for more in ((), ("-n1",)):
        done = run(*more)
        assert done.returncode == 1, done.stdout + done.stderr
        assert f"\n{caught.value.headline.replace('[mine]', '')}\n\n         tp=0 tp=1\n    dp=0  0 ·" in done.stdout
        assert "first wrong element" in done.stdout
        assert "Traceback" not in done.stdout
    module.write_text(MINE.replace("sorted(axis_name)", "axis_name"))
    assert run().returncode == 0


def test_the_command_repeats_what_was_claimed() -> None:
    """Of a function claims and expectations are no part of the file."""
    function = Expectation.parse  # any that can be imported
    mine = Implementation(
        CONTRACTS["ring_shift"],
        "mine",
        function,
        frozenset({"x64", "trees"}),
        communication=function("permute=1;grad:permute=1"),
    )
    name = f"{function.__func__.__module__}:{function.__func__.__qualname__}"  # type: ignore[attr-defined]
    assert replay_command(mine, Path("a.json")) == (
        f"pytest --replay=a.json --impl ring_shift={name} --claims trees,x64 "
        "--expect-communication 'permute=1;grad:permute=1'"
    )


def test_a_wrong_function_beside_a_replay_is_a_usage_error(tmp_path: Path) -> None:
    """A function that `--impl` names is read before anything is replayed, and refused in one line."""
    (tmp_path / "a.json").write_text(changed())
    done = pytest_run(f"--replay={tmp_path / 'a.json'}", "--impl=foo=mine:shift", folder=tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    (said,) = [text for text in done.stderr.splitlines() if text.strip()]
    assert said.startswith("ERROR: --impl=foo=mine:shift: contract='foo': no such contract; ")


@pytest.mark.lengthy
def test_a_damaged_file_fails_alone(tmp_path: Path) -> None:
    """The rest of its folder is judged before it, values first; a module or a conftest.py there is not run."""
    folder = tmp_path / "from_a_stranger"
    folder.mkdir()
    for name in ("conftest", "test_it", "json"):
        (folder / f"{name}.py").write_text("raise SystemExit('it ran')\n")
    (folder / "a.json").write_text(changed(format=7))
    (folder / "b.json").write_text(changed(law="gradient"))
    (folder / "c.json").write_text(changed())
    done = pytest_run(f"--replay={folder}", "-v", folder=tmp_path)
    assert (done.returncode, done.stdout.count("1 failed, 2 passed")) == (1, 1), done.stdout
    assert re.findall(r"::(\w) (?:PASSED|FAILED)", done.stdout) == ["c", "b", "a"]
    assert f"\n{folder}/a.json: format=7: expected 5: another version's\n" in done.stdout
