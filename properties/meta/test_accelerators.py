"""The markers `tpu` and `gpu` and their options on a machine without such devices."""

import os
import re
from pathlib import Path

import pytest

from shardproof.properties.meta.runs import ROOT, pytest_apart
from shardproof.properties.performance.compiled import UNSHARDED
from shardproof.properties.performance.measured import NAIVE

MEASURING = """
import time
import jax, pytest

pytestmark = pytest.mark.{marker}


def test_measures(record_table):
    record_table("a table")
    assert len(jax.devices()) == 8
"""


def run_pytest(tmp_path: Path, *arguments: str) -> tuple[int, str]:
    """A run of a marked test in a project of its own, with the suite's plugin."""
    plugin = "-p", "shardproof.properties.report.plugin"
    return pytest_apart(*plugin, "-rs", *arguments, str(tmp_path), folder=tmp_path, PYTHONPATH=str(ROOT))


@pytest.mark.lengthy
def test_required_devices_that_are_not_there_are_a_failure(tmp_path: Path) -> None:
    """Missing devices skip a marked test, and fail it with `--require-tpu` or `--require-gpu`."""
    for marker in ("tpu", "gpu"):
        (tmp_path / f"test_{marker}.py").write_text(MEASURING.format(marker=marker), encoding="utf-8")
    text = {
        marker: f"this test measures time on {kind} devices, and this run is on 8 cpu devices: expected pytest -m "
        f"{marker} --platform {marker} --devices N, on a machine with N {kind} devices"
        for marker, kind in (("tpu", "TPU"), ("gpu", "GPU"))
    }
    code, output = run_pytest(tmp_path)
    assert code == 0, output
    assert "2 skipped" in output
    assert all(sentence in output for sentence in text.values())
    code, output = run_pytest(tmp_path, "--require-tpu", "--require-gpu")
    assert code == 1, output
    assert "2 failed" in output
    assert all(f"--require-{marker}: {sentence}" in output for marker, sentence in text.items())
    assert "Traceback" not in output


@pytest.mark.lengthy
def test_required_tests_that_were_not_selected_are_a_failure(tmp_path: Path) -> None:
    """`--require-tpu` fails a run that selects no TPU test."""
    (tmp_path / "test_mine.py").write_text("def test_nothing():\n    pass\n", encoding="utf-8")
    code, output = run_pytest(tmp_path, "--require-tpu")
    assert code == 1, output
    assert "ERROR: --require-tpu: no test that needs TPU devices was selected" in output


AS_IF = """
import shardproof.properties.report.plugin as plugin

own = plugin.cannot_run
plugin.cannot_run = lambda name, config: own(name, PassingFor(config))


class PassingFor:
    def __init__(self, config):
        self.config = config
        if hasattr(config, "workerinput"):
            self.workerinput = config.workerinput

    def getoption(self, name):
        return "tpu" if name == "--platform" else self.config.getoption(name)
"""


@pytest.mark.lengthy
def test_workers_measure_nothing_and_one_process_does(tmp_path: Path) -> None:
    """Two workers measure nothing, and one process measures and shows its table."""
    (tmp_path / "test_mine.py").write_text(MEASURING.format(marker="tpu"), encoding="utf-8")
    (tmp_path / "conftest.py").write_text(AS_IF, encoding="utf-8")
    code, output = run_pytest(tmp_path, "-n", "2", "--require-tpu")
    assert code == 1, output
    assert "--require-tpu: this test measures time, which 2 workers at once would change" in output
    code, output = run_pytest(tmp_path, "-n", "1", "--require-tpu")
    assert code == 0, output
    assert "1 passed" in output
    assert re.search(r"= what was measured =+\na table", output)
    assert "ERROR" not in output


GATHERED = """from jax import lax
import jax.numpy as jnp


def gathered(lhs, rhs, axis_name):
    rows = lax.all_gather(lhs, axis_name, axis=lhs.ndim - 2, tiled=True)
    return jnp.matmul(rows, rhs, preferred_element_type=jnp.float32).astype(lhs.dtype)
"""
SMALLER = """
import shardproof.properties.performance.measured as measured

measured.SHAPES = {"wide": (64, 64, 64)}
"""


@pytest.mark.lengthy
def test_given_functions_are_measured_as_well(tmp_path: Path) -> None:
    """A function given by `--impl` is measured and profiled with the naive form."""
    (tmp_path / "mine.py").write_text(GATHERED, encoding="utf-8")
    (tmp_path / "conftest.py").write_text(AS_IF + SMALLER, encoding="utf-8")
    profile = tmp_path / "traces"
    options = ["--impl=all_gather_matmul_lhs=mine:gathered", "-m", "tpu", "--require-tpu", f"--profile={profile}"]
    path = os.pathsep.join((str(ROOT), str(tmp_path)))
    code, output = pytest_apart("-p", "shardproof.plugin", *options, folder=tmp_path, PYTHONPATH=path)
    assert code == 0, output
    lines = [line for line in output.splitlines() if line.startswith("│ all_gather_matmul_lhs ")]
    assert [[cell.strip() for cell in line.strip("│").split("│")][1] for line in lines] == [
        UNSHARDED,
        NAIVE,
        "gathered",
    ]
    assert {path.name for path in (profile / "all_gather_matmul_lhs").iterdir()} == {UNSHARDED, NAIVE, "gathered"}
