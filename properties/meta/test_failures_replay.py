"""What was written down can be run again, by hand and in every run; what was not written by us changes nothing."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardproof.impl import collectives
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.data import Data
from shardproof.properties.engines import XlaEngine
from shardproof.properties.laws.law import LAWS
from shardproof.properties.mutants import runtime
from shardproof.properties.programs.implementations import IMPLEMENTATIONS, Implementation
from shardproof.properties.programs.violation import Broken
from shardproof.properties.report.failures import replay, write
from shardproof.properties.report.failures.files import replace
from shardproof.properties.report.failures.record import failing_case, identity, parse, record
from shardproof.properties.report.failures.replay import files, read, regressions, run
from shardproof.properties.runner.judging import verify
from shardproof.properties.runner.lookup import implementation_of
from shardproof.properties.runner.named import Named, NotAFailure, named
from shardproof.properties.runner.tally import Tally
from shardproof.properties.runner.violation import LawViolation

ROOT = Path(__file__).resolve().parents[2]
MINE = '''
"""A user's module."""
from shardproof.impl.collectives import permute


def ring_shift(x, axis_name, *, offset=1):
    """Numbers a tuple in mesh order."""
    from jax import lax
    axes = (axis_name,) if isinstance(axis_name, str) else tuple(sorted(axis_name))
    p = lax.axis_size(axes)
    return permute(x, axes, perm=[(i, (i + offset) % p) for i in range(p)])
'''
CASE = Case(
    "ring_shift",
    MeshCase(("dp", "tp"), (2, 2)),
    ("tp", "dp"),
    (Operand((1,), "float32", Placement((("dp", "tp"),))),),
    (("offset", 1),),
    (Data("exact", 0), Data("distinct", 1)),
)
LAX = next(i for i in IMPLEMENTATIONS if i.contract == "ring_shift")


def found(
    implementation: Implementation = LAX, case: Case = CASE, finding: str = "2 of 4 blocks wrong"
) -> LawViolation:
    """A violation of the law of values, on the second data set."""
    return LawViolation(implementation, LAWS["value"], case, "xla", Broken("values", finding, data=case.data[1]))


def test_a_failure_survives_its_json() -> None:
    """Law, function, engine and case come back, with the one data set that showed the failure."""
    violation = found()
    recorded = parse(json.dumps(record(violation)))
    assert (recorded.law, recorded.engine, recorded.finding) == ("value", "xla", "2 of 4 blocks wrong")
    assert recorded.implementation == named(LAX)
    assert recorded.case == failing_case(violation) == dataclasses.replace(CASE, data=(Data("distinct", 1),))
    assert implementation_of(recorded.implementation) is LAX


@pytest.mark.parametrize(
    ("finding", "violated"),
    [
        ("2 of 4 blocks wrong", "values"),
        ("aborts the process (SIGABRT)", "aborts"),
        ("does not finish: it waits, and has computed nothing for 30 s", "unfinished"),
        ("takes more than 6 GiB of memory", "memory"),
    ],
)
def test_the_first_format_is_read(finding: str, violated: str) -> None:
    """A file of the first format says in words alone what a process did not survive."""
    content = record(found(finding=finding)) | {"format": 1}
    del content["violated"]
    assert parse(json.dumps(content)).violated == violated
    with pytest.raises(NotAFailure, match="violated"):
        parse(json.dumps(content | {"format": 2}))


def test_this_projects_own_functions_are_found_by_their_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Files from before this project was a package are of the same function, and a checkout is a working directory."""
    earlier = parse(changed(implementation__module="impl.collectives")).implementation
    assert implementation_of(earlier) is LAX
    planted = Named("ring_shift", "shift_hangs", runtime.__name__, "shift_hangs")
    monkeypatch.chdir(ROOT)
    assert implementation_of(planted).function is runtime.shift_hangs
    monkeypatch.chdir(tmp_path)
    for theirs in (dataclasses.replace(earlier, path=str(tmp_path / "impl" / "collectives.py")), planted):
        with pytest.raises(NotAFailure, match="is not defined below"):
            implementation_of(theirs)


def test_the_name_of_a_failure_is_readable_and_stable() -> None:
    """The same function, law and case have the same name, whatever was found; others have another."""
    violation = found()
    name = identity(violation)
    assert identity(found(finding="3 of 4 blocks wrong")) == name
    assert name.startswith("ring_shift-lax-value-")
    assert identity(found(case=dataclasses.replace(CASE, axis_name=("dp", "tp")))) != name


def test_a_law_under_a_transformation_is_found_again() -> None:
    """A violation is told with the transformation, and recorded under the law that drew it."""
    case = dataclasses.replace(CASE, chain=("vmap",))
    violation = LawViolation(LAX, LAWS["transformed gradient"], case, "xla", Broken("raises", "raises ValueError: no"))
    assert violation.title == "gradient under vmap"
    assert record(violation)["law"] == "transformed gradient"


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


DAMAGED = {
    "half a file": ('{"kind": "shardproof fail', "not JSON"),
    "another kind": ("[1, 2]", "not a failure of this suite"),
    "a report": ('{"header": []}', "not a failure of this suite"),
    "newer": (changed(format=3), "format=3: expected at most 2; a newer version wrote this"),
    "newer case": (changed(case__format=99), "format=99: expected"),
    "no law": (changed(law="speed"), "law='speed': expected one of"),
    "no contract": (changed(case__contract="gather"), "contract='gather': expected one of"),
    "no engine": (changed(engine="tpu"), "engine='tpu': expected one of"),
    "no feature": (changed(implementation__features=["all"]), "feature='all': expected one of"),
    "no parameter": (changed(case__params={"shell": "rm"}), "parameter='shell': expected one of"),
    "no transformation": (changed(case__chain=["eval"]), "chain='eval': expected one of"),
    "too many transformations": (changed(case__chain=["jit"] * 4), "chain: 4 in it: expected at most 3"),
    "twice eager": (changed(case__chain=["eager", "eager"]), "expected at most 3 links, 2 of which batch"),
    "eager inside": (changed(case__chain=["vmap", "eager"]), "expected at most 3 links, 2 of which batch"),
    "batches of batches": (changed(case__chain=["vmap"] * 3), "expected at most 3 links, 2 of which batch"),
    "a chain of another law": (changed(case__chain=["eager"]), "chain=('eager',): the law 'value' draws no such chain"),
    "no mesh": (changed(case__mesh={"sizes": [2]}), "mesh="),
    "no dtype": (
        changed(case__operands=[{"block": [1], "dtype": "object", "placement": {"spec": [[]], "stacked": []}}]),
        "dtype='object'",
    ),
    "no axis": (changed(case__axis_name=["xp"]), "axis_name: not as the contract"),
    "a million devices": (
        changed(case__mesh=MeshCase(("dp", "tp"), (1, 1), (10**6,)).to_json()),
        "expected at most 65536 devices",
    ),
    "a thousand devices of XLA": (
        changed(case__mesh=MeshCase(("dp", "tp"), (1, 1), (1000,)).to_json()),
        "expected numbers below 256",
    ),
    "no sizes": (changed(case__operands=[]), "operands: 0 given"),
    "no implementation": (changed(implementation="os:system"), "damaged"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_refused_with_its_name_and_the_reason(name: str, tmp_path: Path) -> None:
    """What could not have been written by this version is not run; one line says why."""
    text, reason = DAMAGED[name]
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(NotAFailure) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_function_that_is_not_there_is_said_so() -> None:
    """Neither a module nor a name that is missing is passed over; a lambda has no name to be found by."""
    missing = parse(changed(implementation__module="no_such_module", implementation__name="mine"))
    with pytest.raises(NotAFailure, match=r"no_such_module:ring_shift is not defined below .*: name it with --impl"):
        implementation_of(missing.implementation)
    nameless = parse(changed(implementation__qualname="test.<locals>.<lambda>", implementation__name="mine"))
    with pytest.raises(NotAFailure, match="is not a function of a module: run the script"):
        implementation_of(nameless.implementation)
    no_function = named(Implementation("ring_shift", "mine", collectives.ring_shift))
    with pytest.raises(NotAFailure, match="is not a function"):
        implementation_of(dataclasses.replace(no_function, name="mine", qualname="REDUCTIONS"))


def test_a_folder_stands_for_the_failures_in_it(tmp_path: Path) -> None:
    """Every JSON file of a folder is replayed; an empty one is a mistake."""
    with pytest.raises(NotAFailure, match="expected a folder with"):
        files(tmp_path)
    with pytest.raises(NotAFailure, match="no such file"):
        files(tmp_path / "nothing.json")
    for name in ("b.json", "a.json", "c.py"):
        (tmp_path / name).write_text("")
    assert [path.name for path in files(tmp_path)] == ["a.json", "b.json"]


def test_regressions_are_of_this_project_only(tmp_path: Path) -> None:
    """A file that names somebody else's function is an error, and nothing of it is imported."""
    (tmp_path / "one.json").write_text(json.dumps(record(found())))
    assert [recorded.case for _, recorded in regressions(tmp_path)] == [failing_case(found())]
    (tmp_path / "two.json").write_text(changed(implementation__name="mine", implementation__module="evil"))
    with pytest.raises(NotAFailure, match=r"two\.json: 'mine' is not an implementation of this project"):
        regressions(tmp_path)
    assert "evil" not in sys.modules


def test_a_repaired_failure_passes() -> None:
    """What was recorded is checked, and nothing else."""
    assert run(parse(json.dumps(record(found()))), LAX).cases == 1


@pytest.mark.lengthy
def test_a_failure_that_ended_its_process_is_replayed_in_another(tmp_path: Path) -> None:
    """A crash that is still there is the same violation again, and the rest of the folder is judged."""
    (tmp_path / "crashing.py").write_text("import os\n\ndef ring_shift(x, axis_name, *, offset=1):\n    os.abort()\n")
    folder = tmp_path / "kept"
    folder.mkdir()
    function = {"implementation__name": "mine", "implementation__module": "crashing"}
    crash = changed(finding="aborts the process (SIGABRT)", **function)
    (folder / "a.json").write_text(crash)
    (folder / "b.json").write_text(changed())
    done = pytest_run(f"--replay={folder}", folder=tmp_path)
    assert (done.returncode, done.stdout.count("1 failed, 1 passed")) == (1, 1), done.stdout
    assert re.search(r"ring_shift\[mine\]: value: .* aborts the process \(SIGABRT\)", done.stdout), done.stdout


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    """Writing leaves no temporary file, neither when it succeeds nor when it fails."""
    path = tmp_path / "folder" / "a.json"
    replace(path, "one")
    replace(path, "two")
    assert path.read_text() == "two"
    with pytest.raises(UnicodeEncodeError):
        replace(path, "\ud800")
    assert path.read_text() == "two"
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]


@pytest.mark.lengthy
@pytest.mark.either_end
def test_a_failure_becomes_a_regression(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is validated and copied, whoever keeps it is told where it is now, and every run checks it first."""
    monkeypatch.chdir(tmp_path)
    written = write(found()).case
    assert written is not None
    case = written.resolve()
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for part in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / part, checkout / part)
    for part in ("impl", "oracles", "properties", "shardproof"):
        shutil.copytree(ROOT / part, checkout / part, symlinks=True)
    kept = checkout / "properties" / "regressions"
    before = {path.name for path in kept.iterdir()}

    def keep() -> subprocess.CompletedProcess[str]:
        return pytest_run(f"--keep-regression={case}", folder=checkout, root=checkout)

    done = keep()
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{case} is now a regression: {kept / case.name}\n"
    assert [recorded.case for path, recorded in regressions(kept) if path.name == case.name] == [failing_case(found())]
    later = pytest_run("-v", "properties/suite/test_regressions.py", folder=checkout, root=checkout)
    assert f"test_regression[{case.stem}] PASSED" in later.stdout, later.stdout

    for text, reason in ((changed(implementation__name="mine"), "'mine' is not an implementation"), ("{", "not JSON")):
        case.write_text(text)
        refused = keep()
        assert refused.returncode == 4
        assert reason in refused.stderr
    assert {path.name for path in kept.iterdir()} == before | {case.name}


def test_the_regressions_of_this_checkout_can_be_read() -> None:
    """Every file in properties/regressions is one that a run can check."""
    assert len(regressions()) == len(list(replay.REGRESSIONS.glob("*.json")))


def pytest_run(*options: str, folder: Path, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """A pytest run in a folder that is not this checkout, with this project's plugins."""
    path = os.pathsep.join((str(root), str(folder)))
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "500", "PYTHONDONTWRITEBYTECODE": "1"}
    if not any(option.startswith("--color") for option in options):
        environment["NO_COLOR"] = "1"
    plugins = ["-p", "no:cacheprovider", *(["-p", "shardproof.plugin"] if root != folder else [])]
    command = [sys.executable, "-m", "pytest", *plugins, *options]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600
    )


@pytest.mark.lengthy
def test_a_replay_fails_the_same_way_until_it_is_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The headline, the text and the exit code are those of the first time, with workers and in JUnit XML as well."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "mesh_order_shift.py"
    module.write_text(MINE)
    import mesh_order_shift  # type: ignore[import-not-found]

    mine = Implementation("ring_shift", "mine", mesh_order_shift.ring_shift)
    with pytest.raises(LawViolation) as caught:
        verify(LAWS["value"], mine, CASE, XlaEngine(), Tally("ring_shift", "mine", "value"))
    headline, file = caught.value.headline, write(caught.value).case
    assert file is not None
    case = file.resolve()

    done = pytest_run(f"--replay={case}", folder=tmp_path)
    assert done.returncode == 1, done.stdout
    assert f"\n{headline}\n\n         tp=0 tp=1\n    dp=0  0 ·" in done.stdout
    assert re.search(rf"FAILED \S*{case.stem}.json::{case.stem} - {re.escape(headline)}\n", done.stdout), done.stdout
    assert "Traceback" not in done.stdout
    assert "\x1b" not in done.stdout
    again = f"  pytest --replay=.shardproof/failures/{case.name}\n"
    assert again in done.stdout
    assert len(done.stdout.splitlines()) < 60
    assert f"\nreplay imports mesh_order_shift:ring_shift from {module}\n" in done.stdout

    junit = tmp_path / "junit.xml"
    spread = pytest_run(f"--replay={case}", "-n1", f"--junitxml={junit}", folder=tmp_path)
    assert spread.returncode == 1, spread.stdout
    text = done.stdout[done.stdout.index(f"\n{headline}\n") :].partition("  python ")[0]
    assert text in spread.stdout
    written = junit.read_text(encoding="utf-8")
    assert written.count("first wrong element") == 1
    assert 'name="shardproof script" value=".shardproof/failures/' in written

    coloured = pytest_run(f"--replay={case}", "-n1", "--color=yes", folder=tmp_path)
    lines = [line for line in coloured.stdout.splitlines() if "✗" in line]
    assert lines
    assert all("\x1b[" in line for line in lines)

    module.write_text(MINE.replace("sorted(axis_name)", "axis_name"))
    assert pytest_run(f"--replay={case}", folder=tmp_path).returncode == 0


@pytest.mark.either_end
@pytest.mark.parametrize(
    ("impl", "line"),
    [
        ("foo", "ERROR: --impl=foo: expected CONTRACT=MODULE:FUNCTION, as in all_gather=mine:gather"),
        ("foo=mine:shift", "ERROR: --impl=foo=mine:shift: contract='foo': no such contract; "),
    ],
)
def test_a_wrong_function_beside_a_replay_is_a_usage_error(impl: str, line: str, tmp_path: Path) -> None:
    """What `--impl` names is read before anything is replayed, and refused in one line."""
    (tmp_path / "a.json").write_text(changed())
    done = pytest_run(f"--replay={tmp_path / 'a.json'}", f"--impl={impl}", folder=tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    (said,) = [text for text in done.stderr.splitlines() if text.strip()]
    assert said.startswith(line)


@pytest.mark.lengthy
@pytest.mark.either_end
def test_a_damaged_file_fails_alone(tmp_path: Path) -> None:
    """One line names the file and the reason, and the rest of the folder is judged."""
    (tmp_path / "a.json").write_text(changed(format=7))
    (tmp_path / "b.json").write_text(changed())
    done = pytest_run(f"--replay={tmp_path}", folder=tmp_path)
    reason = f"{tmp_path}/a.json: format=7: expected at most 2; a newer version wrote this"
    assert (done.returncode, done.stdout.count("1 failed, 1 passed")) == (1, 1), done.stdout
    assert f"\n{reason}\n" in done.stdout
