"""The options of a run: what cannot be used is one clear line, and a seed gives every test cases of its own."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from properties.meta.test_failures_replay import pytest_run
from properties.meta.test_plugin import run_pytest
from properties.profiles import seed_of

MINE = """
from impl.collectives import ring_shift


def right(x, axis_name, *, offset=1):
    return ring_shift(x, axis_name, offset=offset)


def wrong(x, axis_name, *, offset=1):
    return ring_shift(x, axis_name, offset=offset + 1)
"""


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--hypothesis-profile=nosuch", "expected one of dev, ci, matrix, nightly, debug"),
        ("--claims=x64", "expected --impl as well, whose function it is said of"),
        ("--expect-communication=permute=1", "expected --impl as well, whose function it is said of"),
    ],
)
def test_an_option_that_cannot_be_used_is_one_line(option: str, message: str, tmp_path: Path) -> None:
    """Its value and what was expected are said in one line, in this checkout and from another folder."""
    done = pytest_run(option, folder=tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert [line for line in done.stderr.splitlines() if line.strip()] == [f"ERROR: {option}: {message}"]
    run = run_pytest("properties/test_collectives.py", option)
    assert run.code == pytest.ExitCode.USAGE_ERROR
    assert [line for line in run.output.splitlines() if line.strip()] == [f"ERROR: {option}: {message}"]


def test_a_replay_judges_the_function_that_is_given(tmp_path: Path) -> None:
    """With `--impl` a saved failure is checked of that function: it fails while that is wrong, and passes else."""
    (tmp_path / "mine.py").write_text(MINE)
    options = ("--engine=simulate", "--hypothesis-profile=matrix", "-k", "value")
    failed = pytest_run("--impl=ring_shift=mine:wrong", *options, folder=tmp_path)
    assert failed.returncode == pytest.ExitCode.TESTS_FAILED, failed.stdout
    (saved,) = (tmp_path / ".shardproof" / "failures").glob("ring_shift-*-value-*.json")

    (tmp_path / "mine.py").rename(tmp_path / "other.py")  # which the file does not name
    assert "mine" in pytest_run(f"--replay={saved}", folder=tmp_path).stdout
    again = pytest_run(f"--replay={saved}", "--impl=ring_shift=other:wrong", folder=tmp_path)
    assert again.returncode == pytest.ExitCode.TESTS_FAILED, again.stdout
    (line,) = re.findall(r"^ring_shift\[wrong\]: value: .*$", failed.stdout, re.MULTILINE)[:1]
    assert f"\n{line}\n" in again.stdout
    fixed = pytest_run(f"--replay={saved}", "--impl=ring_shift=other:right", folder=tmp_path)
    assert fixed.returncode == pytest.ExitCode.OK, fixed.stdout


def drawn(folder: Path, *options: str) -> dict[str, Any]:
    """What the law of values drew for each form of a product."""
    report = folder / "report.json"
    chosen = ("--engine=simulate", "-k", "test_value_simulate and all_gather_matmul_rhs", f"--report={report}")
    run = run_pytest("properties/test_overlapped_matmul.py", *chosen, *options)
    assert run.code == pytest.ExitCode.OK, run.output
    entries = json.loads(report.read_text())["verified"]
    return {entry["implementation"]: (entry["meshes"], entry["drawn"]) for entry in entries}


@pytest.mark.parametrize(
    "options", [("--hypothesis-profile=matrix",), ("--hypothesis-profile=dev", "--hypothesis-seed=5")], ids=str
)
def test_forms_draw_cases_of_their_own_and_again(options: tuple[str, ...], tmp_path: Path) -> None:
    """Under one seed, and derandomized, no two forms of a product draw the same cases, and each always the same."""
    first = drawn(tmp_path, *options)
    assert len(first) >= 5
    ring = [name for name in first if "nested" not in name]
    assert all(first[a] != first[b] for i, a in enumerate(ring) for b in ring[:i])
    assert drawn(tmp_path, *options) == first


def test_a_seed_is_that_of_a_test() -> None:
    """Another run, implementation, law or engine has another seed, and the same ones have the same."""
    assert seed_of(1, "a", "value", "xla") == seed_of("1", "a", "value", "xla")
    others = {seed_of(1, "a", "value", "xla"), seed_of(2, "a", "value", "xla"), seed_of(1, "b", "value", "xla")}
    assert len({*others, seed_of(1, "a", "type", "xla"), seed_of(1, "a", "value", "simulate")}) == 5
