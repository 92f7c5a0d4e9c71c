"""Python processes that tests start: scripts, and runs of pytest."""

import multiprocessing
import os
import pty
import runpy
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardproof.command import main

ROOT = Path(__file__).resolve().parents[2]
Done = subprocess.CompletedProcess[str]
PYTEST = ("-m", "pytest", "-p", "no:cacheprovider")


def python(*arguments: str | Path, folder: Path | str | None = None, **environment: str) -> Done:
    """A process in a folder, to which more may be said in its environment."""
    command, variables = [sys.executable, *map(str, arguments)], {**os.environ, **environment}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=1800)


def in_terminal(*arguments: str | Path, folder: Path, **environment: str) -> bytes:
    """The output of a Python process on a terminal of its own, with all that it erases."""
    ours, theirs = pty.openpty()
    command, variables = [sys.executable, *map(str, arguments)], {**os.environ, "COLUMNS": "100", **environment}
    with subprocess.Popen(command, cwd=folder, env=variables, stdout=theirs):
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # as the terminal has it once all is read
            while part := os.read(ours, 4096):
                shown += part
    os.close(ours)
    return shown


def forked(script: Path, output: Path) -> tuple[int | None, str]:
    """The exit code of a script, and what it prints, in a fork of a process that has imported JAX once for many."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["jax", "jax.numpy", __name__])
    process = context.Process(target=run_as_main, args=(script, output))
    process.start()
    process.join(1800)
    return process.exitcode, output.read_text()


def run_as_main(script: Path, output: Path) -> None:
    """Runs a script as if it were started by itself, what it prints in a file."""
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        sys.argv = [str(script)]
        runpy.run_path(str(script), run_name="__main__")


def command(*arguments: str) -> Result:
    """The command `shardproof` in this process; an exception that it does not report is raised."""
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def work_in(folder: Path, monkeypatch: pytest.MonkeyPatch, **modules: str) -> Path:
    """Makes a folder the working directory, from which modules of these sources can be imported; returns it."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source, encoding="utf-8")
        monkeypatch.delitem(sys.modules, name, raising=False)
    return folder


def pytest_given(folder: Path, *arguments: str) -> Done:
    """The laws of functions that are given, from another folder, which may take long where others work as well."""
    rooted = "-c", ROOT / "pyproject.toml", "--rootdir", ROOT, ROOT / "properties/given/laws.py"
    return python(*PYTEST, *rooted, "--hypothesis-profile=matrix", *arguments, folder=folder)


def pytest_run(*options: str, folder: Path, root: Path | str = ROOT) -> Done:
    """A run in a folder that is not this checkout, with this project's plugins."""
    environment = {"PYTHONPATH": f"{root}:{folder}", "COLUMNS": "500", "PYTHONDONTWRITEBYTECODE": "1"}
    if not any(option.startswith("--color") for option in options):
        environment["NO_COLOR"] = "1"
    plugins = ["-p", "shardproof.plugin"] if root != folder else []
    return python(*PYTEST, *plugins, *options, folder=folder, **environment)


def pytest_apart(*arguments: str, folder: Path | str = ROOT, **environment: str) -> tuple[int, str]:
    """The exit code and the output of a run of which the surrounding one is not a part."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "CI", "COLUMNS", "TOX_"))}
    ended = subprocess.run(
        [sys.executable, *PYTEST, "--color=no", *arguments],
        cwd=folder,
        env={**inherited, "COLUMNS": "250", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=240,
    )
    return ended.returncode, ended.stdout
