"""Two runs compared: what is newly violated, held again, weaker, slower, new and gone, and how the runs differ."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from shardproof.properties.meta.runs import command
from shardproof.properties.report.compare import compare
from shardproof.properties.report.report import Record, record_of
from shardproof.properties.report.session import facts
from shardproof.properties.runner.tally import Tally


def run(config: pytest.Config, version: str, *tallies: Tally) -> Record:
    """A run with a version of JAX."""
    record = record_of(tallies, facts(config, ""), [])
    record["versions"]["jax"] = version
    return record


def law(implementation: str, outcome: str = "passed", **counted: Any) -> Tally:
    """The law of values of an implementation of `all_gather`, on eight structures unless more is said."""
    failure = {"headline": "all_gather[a]: value: mesh (dp=2): wrong", "cause": "wrong", "engine": "xla", "text": ""}
    tally = Tally("all_gather", implementation, "value", "xla", structures=8, outcome=outcome)
    return dataclasses.replace(tally, failure=failure if outcome == "failed" else {}, **counted)


def test_each_change_is_named_and_only_a_new_violation_is_worse(pytestconfig: pytest.Config) -> None:
    """A line for each law that differs, below a heading, and what differs of the runs above."""
    before = run(pytestconfig, "0.10", law("a"), law("b", "failed"), law("c"), law("d"), law("e"), law("f", seconds=4))
    better = [law("b"), law("c", structures=3), law("d", unsupported={"no": 2}), law("f", seconds=20), law("g")]
    after = run(pytestconfig, "0.12", law("a", "failed"), *better)
    lines, worse = compare(before, after)
    assert worse
    assert "jax: 0.10 -> 0.12" in lines
    assert lines[0].startswith("the same: ")
    assert " ," not in lines[0]  # a fact without a value
    text = "\n".join(lines)
    assert "NEWLY VIOLATED (1):\n  all_gather[a], value (xla): held on 8 structures -> mesh (dp=2): wrong\n" in text
    assert "violated no more (1):\n  all_gather[b], value (xla): mesh (dp=2): wrong -> held on 8 structures\n" in text
    assert "  all_gather[c], value (xla): held on 8 structures -> held on 3 structures\n" in text
    assert "  all_gather[d], value (xla): unsupported now: no\n" in text
    assert "slower (1):\n  all_gather[f] (xla): 0.44 -> 2.2 seconds for each structure\n" in text
    assert "gone (1):\n  all_gather[e] (xla): value\n" in text
    assert "new (1):\n  all_gather[g] (xla): value\n" in text
    assert not compare(after, after)[1]
    assert compare(after, after)[0][-1] == "6 laws of implementations in both runs; no difference"


def test_the_commands_take_what_a_run_wrote(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    """`compare` exits with 0, 1 if a law is newly violated, and 2 for another file; `report` writes the page."""
    files = tmp_path / "before.json", tmp_path / "after.json"
    for file, outcome in zip(files, ("passed", "failed"), strict=True):
        file.write_text(json.dumps(run(pytestconfig, "0.10", law("a", outcome))), encoding="utf-8")
    assert command("compare", *map(str, files)).exit_code == 1
    assert command("compare", *map(str, files[::-1])).exit_code == 0
    (tmp_path / "other.json").write_text("{}")
    done = command("compare", str(files[0]), str(tmp_path / "other.json"))
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == (
        f"Error: {tmp_path}/other.json: expected a JSON object with kind='shardproof report' and format=1, "
        "got [None, None]\n"
    )
    assert command("report", str(tmp_path / "none.json"), "--no-open").exit_code == 2
    done = command("report", str(files[1]), "--no-open")
    assert (done.exit_code, done.stdout) == (0, f"wrote {tmp_path}/after.html\n")
    assert "<title>Violated · shardproof</title>" in (tmp_path / "after.html").read_text(encoding="utf-8")
    assert command("report", str(files[1]), "--output", str(tmp_path / "page.txt")).exit_code == 2
