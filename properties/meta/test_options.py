"""The options of a run: what cannot be used is one clear line, and a seed gives every test cases of its own."""

import json
from pathlib import Path
from typing import Any

import pytest

from shardproof.properties.meta.test_plugin import run_pytest
from shardproof.properties.runner.profiles import seed_of

pytestmark = pytest.mark.either_end


def drawn(folder: Path, *options: str) -> dict[str, Any]:
    """The drawn cases of each implementation of a product, for the law of values."""
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
