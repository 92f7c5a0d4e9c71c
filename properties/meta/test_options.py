"""The options of a run: what cannot be used is one clear line, and a seed gives every test cases of its own."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from shardproof.properties.meta.runs import pytest_run
from shardproof.properties.meta.test_plugin import run_pytest
from shardproof.properties.runner.search import seed_of

pytestmark = pytest.mark.either_end

MINE = """
from shardproof.impl import collectives


def shift(x, axis_name, *, offset=1):
    return collectives.ring_shift(x, axis_name, offset=offset + 1)
"""


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--hypothesis-profile=nosuch", "expected one of dev, ci, matrix, few, thorough, debug"),
        ("--claims=x64", "expected --impl as well, whose function it is said of"),
        ("--expect-communication=permute=1", "expected --impl as well, whose function it is said of"),
    ],
)
def test_an_option_that_cannot_be_used_is_one_line(option: str, message: str, tmp_path: Path) -> None:
    """Its value and what was expected are said in one line, in this checkout and from another folder."""
    asking = () if "--impl" in message else ("--impl=all_gather=shardproof.impl.collectives:all_gather",)
    done = pytest_run(option, *asking, folder=tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert [line for line in done.stderr.splitlines() if line.strip()] == [f"ERROR: {option}: {message}"]
    run = run_pytest("properties/suite/test_collectives.py", option)
    assert run.code == pytest.ExitCode.USAGE_ERROR
    assert [line for line in run.output.splitlines() if line.strip()] == [f"ERROR: {option}: {message}"]


@pytest.mark.lengthy
def test_a_replay_judges_the_function_that_is_given(tmp_path: Path) -> None:
    """A failure of a module from elsewhere is checked of that with `--impl` alone: it fails while that is wrong."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here, elsewhere):
        folder.mkdir()
    module = elsewhere / "mine.py"
    module.write_text(MINE)
    given = ("--impl=ring_shift=mine:shift", "-o", f"pythonpath={elsewhere}")
    chosen = ("--engine=simulate", "--hypothesis-profile=ci", "--laws=value")
    failed = pytest_run(*given, *chosen, folder=here)
    assert failed.returncode == pytest.ExitCode.TESTS_FAILED, failed.stdout
    (saved,) = (here / ".shardproof" / "failures").glob("ring_shift-*-value-*.json")

    refused = pytest_run(f"--replay={saved}", *given[1:], folder=here)
    assert refused.returncode == pytest.ExitCode.TESTS_FAILED
    assert "expected --impl ring_shift=MODULE:FUNCTION as well" in refused.stdout
    again = pytest_run(f"--replay={saved}", *given, folder=here)
    assert again.returncode == pytest.ExitCode.TESTS_FAILED, again.stdout
    headline = re.search(r"^ring_shift\[shift\]: value: .*$", failed.stdout, re.MULTILINE)
    assert headline is not None
    assert f"\n{headline[0]}\n" in again.stdout
    assert "ERROR" not in again.stdout
    module.write_text(MINE.replace("offset + 1", "offset"))
    fixed = pytest_run(f"--replay={saved}", *given, folder=here)
    assert fixed.returncode == pytest.ExitCode.OK, fixed.stdout
    assert "ERROR" not in fixed.stdout


def drawn(folder: Path, *options: str) -> dict[str, Any]:
    """What was drawn for each implementation of a product, of which the law of values was asked."""
    report = folder / "report.json"
    chosen = ("--engine=simulate", "--laws=value", "-k", "all_gather_matmul_rhs", f"--report={report}")
    run = run_pytest("properties/suite/test_collective_matmul.py", *chosen, *options)
    assert run.code == pytest.ExitCode.OK, run.output
    entries = json.loads(report.read_text())["verified"]
    return {entry["implementation"]: (entry["meshes"], entry["drawn"]) for entry in entries}


@pytest.mark.lengthy
@pytest.mark.parametrize(
    "options", [("--hypothesis-profile=matrix",), ("--hypothesis-profile=matrix", "--hypothesis-seed=5")], ids=str
)
def test_implementations_draw_cases_of_their_own_and_again(options: tuple[str, ...], tmp_path: Path) -> None:
    """Under one seed, and derandomized, no two implementations draw the same cases, and each always the same."""
    first = drawn(tmp_path, *options)
    names = list(first)
    assert len(names) >= 3
    assert all(first[a] != first[b] for i, a in enumerate(names) for b in names[:i])
    assert drawn(tmp_path, *options) == first


def test_a_seed_is_that_of_a_test() -> None:
    """Another run, implementation or engine has another seed, and the same ones have the same."""
    assert seed_of(1, "a", "xla") == seed_of("1", "a", "xla")
    others = {seed_of(1, "a", "xla"), seed_of(2, "a", "xla"), seed_of(1, "b", "xla"), seed_of(1, "a", "simulate")}
    assert len(others) == 4


@pytest.mark.lengthy
def test_a_folder_is_told_as_a_run_is(tmp_path: Path) -> None:
    """Of a folder of failures those of values come before those of gradients, whatever their files' names."""
    (tmp_path / "mine.py").write_text(MINE)
    chosen = ("--engine=simulate", "--hypothesis-profile=ci", "--laws=value,gradient")
    pytest_run("--impl=ring_shift=mine:shift", *chosen, folder=tmp_path)
    folder = tmp_path / ".shardproof" / "failures"
    assert sorted(path.stem.split("-")[2] for path in folder.glob("*.json")) == ["gradient", "value"]
    done = pytest_run(f"--replay={folder}", "--impl=ring_shift=mine:shift", "-v", folder=tmp_path)
    assert re.findall(r"::ring_shift-shift-(\w+)\S* FAILED", done.stdout) == ["value", "gradient"], done.stdout
