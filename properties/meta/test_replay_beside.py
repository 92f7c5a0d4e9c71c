"""What lies beside a replayed file is data as well: no conftest.py, package, module or setting of its folder runs."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from shardproof.properties.meta.test_failures_replay import changed, pytest_run

TESTS = ("evil", "conftest", "__init__", "test_it")
SHADOWS = ("sitecustomize", "usercustomize", "json", "numpy", "jax", "shardproof", "__main__")
SETTINGS = "[pytest]\naddopts = -p evil\npythonpath = .\npython_files = *.py\n"
"""What settings can do: name a plugin, say where it is, and have every file collected."""


def plant(folder: Path, names: Iterable[str] = (*TESTS, *SHADOWS)) -> Path:
    """A folder with settings, and with modules of these names that leave a file beside themselves when they run."""
    folder.mkdir(parents=True)
    for name in names:
        (folder / f"{name}.py").write_text("open(__file__ + '.ran', 'w').close()\n\n\ndef test_it():\n    pass\n")
    (folder / "pytest.ini").write_text(SETTINGS)
    (folder / "good.json").write_text(changed(engine="simulate"))
    (folder / "refused.json").write_text("{")
    return folder


def ran(folder: Path) -> set[str]:
    """The modules that ran."""
    return {path.name.removesuffix(".py.ran") for path in folder.rglob("*.ran")}


@pytest.mark.lengthy
@pytest.mark.parametrize(("place", "workers"), [("here/below", ()), ("elsewhere", ("-n1",))])
def test_nothing_beside_a_replayed_file_runs(place: str, workers: tuple[str, ...], tmp_path: Path) -> None:
    """Files and folders, one in the other, are judged, below the working directory or not, by a worker or not."""
    here = tmp_path / "here"
    here.mkdir()
    outer = plant(tmp_path / place)
    inner = plant(outer / "inner")
    done = pytest_run(f"--replay={outer}", f"--replay={inner / 'good.json'}", *workers, folder=here)
    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert f"\n{outer}/refused.json: not JSON" in done.stdout
    assert ran(tmp_path) == set()


def test_settings_beside_a_file_are_refused(tmp_path: Path) -> None:
    """Of a word of its own pytest looks for settings there before any plugin is asked; such a run ends at once."""
    here, folder = tmp_path / "here", plant(tmp_path / "folder")
    here.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\n")
    done = pytest_run("--replay", str(folder / "good.json"), folder=here)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    (said,) = [line for line in done.stderr.splitlines() if line.strip()]
    assert said.startswith(f"ERROR: --replay: pytest has taken its settings from {folder / 'pytest.ini'}, ")
    assert "expected --replay=FILE, with the equals sign" in said
    assert ran(tmp_path) == set()


@pytest.mark.parametrize("named", [(), ("-c", "pytest.ini")], ids=["found", "named"])
def test_with_the_users_settings_a_word_of_its_own_will_do(named: tuple[str, ...], tmp_path: Path) -> None:
    """Settings of the working directory and ones that are named are read, and a conftest.py beside FILE is not."""
    folder = plant(tmp_path / "folder")
    if not named:
        (folder / "pytest.ini").unlink()
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = pytest_run("--replay", str(folder / "refused.json"), *named, folder=tmp_path)
    assert f"\n{folder}/refused.json: not JSON" in done.stdout, done.stdout + done.stderr
    assert ran(tmp_path) == set()


def test_what_is_planted_runs_where_it_may(tmp_path: Path) -> None:
    """As tests, or on the path, the planted modules do run: so the tests above would see it."""
    tests, path = plant(tmp_path / "tests", TESTS), plant(tmp_path / "path")
    pytest_run(str(tests), folder=tmp_path)
    assert ran(tests) == set(TESTS)
    subprocess.run([sys.executable, "-c", ""], env={**os.environ, "PYTHONPATH": str(path)}, check=True)
    assert "sitecustomize" in ran(path)
