"""The installed package: its files, its imports, and other projects with packages of the same names."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

import shardproof
from shardproof.properties.cases.strategies import meshes
from shardproof.properties.meta.pages import README

ROOT = README.parent
ROOMS = ("impl", "oracles", "properties")
LEFT_OUT = {"benchmark", "meta", "mutants", "regressions", "suite"}
"""The folders of `properties` that only a checkout has: this project's tests, and the bugs planted for them."""
PROJECT = {
    **{f"{room}/__init__.py": "MINE = True\n" for room in ROOMS},
    "mine.py": """
from jax import lax

import impl, oracles, properties

assert impl.MINE and oracles.MINE and properties.MINE


def gather(x, axis_name, *, axis=0, tiled=False):
    return lax.all_gather(x, axis_name, axis=axis, tiled=tiled)


def shift(x, axis_name, *, offset=1):
    p = lax.axis_size(axis_name)
    return lax.ppermute(x, axis_name, [(i, (i + offset + 1) % p) for i in range(p)])
""",
    "pytest.ini": """
[pytest]
addopts = --strict-markers --strict-config
filterwarnings = error
python_functions = own_*
testpaths = tests
""",
    "conftest.py": """
import pytest


def pytest_addoption(parser):
    parser.addoption("--mesh", default="dp=2")


@pytest.fixture
def mesh(request):
    return request.config.getoption("--mesh")
""",
    "tests/test_own.py": """
import sys

import impl, oracles, properties


def own_rooms(mesh):
    assert impl.MINE and oracles.MINE and properties.MINE and mesh == "dp=2"
    print("imported:", *sorted(m for m in sys.modules if m.partition(".")[0] in ("hypothesis", "jax", "shardproof")))
""",
}
"""A project that has packages of its own by the names of this checkout's folders, and its own settings of pytest."""


def started(folder: Path, command: list[str], path: str = "") -> subprocess.CompletedProcess[str]:
    """A Python process in a folder, to which nothing but `path` is known of the run that this test is in."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "PYTHON", "CI", "JAX_", "XLA_"))}
    environment = {**inherited, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "COLUMNS": "200", "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )


def build(folder: Path) -> None:
    """Builds the wheel of this checkout in a folder, and installs it there, in `installed`.

    With the setuptools at hand if they can; otherwise with those that pip finds.
    """
    tree = folder / "tree"
    tree.mkdir()
    for part in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / part, tree / part)
    for part in (*ROOMS, "shardproof"):
        shutil.copytree(ROOT / part, tree / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    try:
        able = int(version("setuptools").partition(".")[0]) >= 77  # as pyproject.toml demands
    except PackageNotFoundError:
        able = False
    pip = ["-m", "pip", "--disable-pip-version-check"]
    alone = ["--no-build-isolation"] if able else []
    done = started(folder, [*pip, "wheel", "--no-deps", *alone, "--wheel-dir", str(folder), str(tree)])
    assert done.returncode == 0, done.stderr
    (wheel,) = map(str, folder.glob("*.whl"))
    done = started(folder, [*pip, "install", "--no-deps", "--no-index", "--target", str(folder / "installed"), wheel])
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and an `installed` one, made once for all workers."""
    shared = tmp_path_factory.getbasetemp()
    folder = (shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared) / "packaging"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = folder.with_suffix(".unfinished")
            unfinished.mkdir()
            build(unfinished)
            unfinished.rename(folder)
    return folder


@pytest.fixture
def installed(built: Path) -> str:
    """The entry of `sys.path` for an installed shardproof."""
    return str(built / "installed")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Somebody else's project."""
    write(tmp_path, PROJECT)
    return tmp_path


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Writes files by their paths in a folder."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_the_wheel_is_one_package(built: Path) -> None:
    """The wheel has the three rooms below `shardproof`, typed, without tests and planted bugs, and nothing else."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"shardproof"}
    kept = [path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    wanted = {f"shardproof/{path.as_posix()}" for path in kept if path.parts[1] not in LEFT_OUT}
    assert {name for name in names if name.startswith("shardproof/")} == {
        *wanted, "shardproof/__init__.py", "shardproof/__main__.py", "shardproof/command.py", "shardproof/plugin.py",
        "shardproof/py.typed",
        "shardproof/properties/performance/compiled.jsonl",
        *(f"shardproof/{page.relative_to(ROOT).as_posix()}" for page in (ROOT / "properties/report/pages").iterdir()),
    }  # fmt: skip
    assert not [name for name in names if re.search(r"/test_|mutant", name)]


def test_public_names_are_imported_when_they_are_used(installed: str, project: Path) -> None:
    """`import shardproof` imports nothing else, and has all of its names."""
    assert set(shardproof.__all__) <= set(dir(shardproof))
    assert all(hasattr(shardproof, name) for name in shardproof.__all__)
    assert shardproof.strategies.meshes is meshes
    with pytest.raises(AttributeError, match="module 'shardproof' has no attribute 'chek'"):
        _ = shardproof.chek  # type: ignore[attr-defined]
    program = (
        "import sys; before = set(sys.modules); import shardproof\n"
        "new = {m.partition('.')[0] for m in set(sys.modules) - before}\n"
        "print(new - sys.stdlib_module_names, shardproof.__file__)\n"
        "from shardproof import CONTRACTS, check, no_communication, simulate, strategies\n"
        "print(*sorted(m for m in sys.modules if m in ('impl', 'oracles', 'properties')))\n"
    )
    done = started(project, ["-c", program], installed)
    assert done.stdout == f"{{'shardproof'}} {installed}/shardproof/__init__.py\n\n", done.stderr


def test_a_run_that_does_not_ask_is_untouched(installed: str, project: Path) -> None:
    """A project's own tests run as without shardproof, and import only its plugin."""
    command = ["-m", "pytest", "-p", "no:cacheprovider", "-rA"]
    done = started(project, command, installed)
    without = started(project, [*command, "-p", "no:shardproof.plugin"], installed)
    assert done.returncode == 0, done.stdout
    assert "\nimported: shardproof shardproof.plugin\n" in done.stdout
    assert "\nimported:\n" in without.stdout
    output = re.compile(r"^(plugins|imported):.*\n|in [\d.]+s", re.MULTILINE)  # pytest lists the plugins that there are
    assert output.sub("", done.stdout) == output.sub("", without.stdout)
    assert (done.stderr, without.stderr) == ("", "")
    helps = started(project, [*command, "--help"], installed).stdout
    assert "\nshardproof: verification of distributed JAX:\n  --devices=N " in helps


@pytest.mark.lengthy
def test_the_options_of_a_project_are_its_own(installed: str, project: Path) -> None:
    """A project's own `--impl` is left to it, and a clash of another option is reported in one line."""
    command = ["-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q"]
    conftest = "def pytest_addoption(parser):\n    parser.addoption({!r})\n"
    (project / "tests" / "test_own.py").write_text(
        "import sys\n\n\ndef own_options(pytestconfig):\n"
        "    assert pytestconfig.getoption('--impl') == 'fast'\n    assert 'jax' not in sys.modules\n"
    )
    (project / "conftest.py").write_text(conftest.format("--impl"))
    done = started(project, [*command[:-2], "--impl", "fast"], installed)
    assert "1 passed" in done.stdout, done.stdout + done.stderr

    (project / "conftest.py").write_text(conftest.format("--devices"))
    taken = started(project, [*command, "--impl=all_gather=mine:gather"], installed)
    assert taken.returncode == pytest.ExitCode.USAGE_ERROR
    (line,) = [text for text in taken.stderr.splitlines() if text.strip()]
    assert line.startswith("ERROR: --devices: shardproof cannot add this option of its own, because another plugin or ")
    free = started(project, [*command, "--impl=all_gather=mine:gather", "--noconftest"], installed)
    assert "test_given[all_gather[gather]-simulate]" in free.stdout, free.stderr


def shows_again(report: str, headline: str, project: Path, installed: str) -> str:
    """Runs the commands of a report, which show the failure again; returns the script that is one of them."""
    commands = re.search(r"\n  python (\S+\.py)\n  pytest (.*--replay=\S+\.json.*)\n", report)
    assert commands
    for arguments in ([commands[1]], ["-m", "pytest", *commands[2].split(), "-p", "no:cacheprovider"]):
        again = started(project, arguments, installed)
        assert again.returncode == 1, again.stdout + again.stderr
        assert again.stderr == ""
    assert headline in again.stdout
    return commands[1]


@pytest.mark.lengthy
def test_a_given_function_is_checked_and_replayed(installed: str, project: Path) -> None:
    """`--impl`, `--replay` and the script of a failure work in a project with packages of the same names."""
    command = ["-m", "pytest", "-p", "no:cacheprovider", "--hypothesis-profile=matrix"]
    given = ["--impl", "all_gather=mine:gather", "--impl", "ring_shift=mine:shift"]
    given += ["--engine=simulate", "--laws=value"]
    done = started(project, [*command, *given], installed)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "FAILED shardproof/properties/given/laws.py::test_given[ring_shift[shift]-simulate]" in done.stdout
    headline = re.search(r"\n(ring_shift\[shift\]: value: mesh .*)\n", done.stdout)
    assert headline
    script = shows_again(done.stdout, headline[1], project, installed)
    (project / "mine.py").write_text(PROJECT["mine.py"].replace("offset + 1", "offset"))
    assert started(project, [script], installed).returncode == 0


@pytest.mark.lengthy
def test_the_command_is_installed(installed: str, project: Path) -> None:
    """`shardproof check` finds the functions of a project, and `shardproof suite` checks what is installed."""
    command = [f"{installed}/bin/shardproof"]
    few = ["--laws", "value", "--max-examples", "3"]
    done = started(project, [*command, "check", "all_gather=mine:gather", *few], installed)
    assert done.returncode == 0, done.stdout + done.stderr
    done = started(project, [*command, "check", "ring_shift=mine:shift", *few], installed)
    assert done.returncode == 1, done.stdout + done.stderr
    few = ["--smoke", "--laws", "value", "-p", "no:cacheprovider", "-k", "masked_mean", "--report", "page.html"]
    done = started(project, [*command, "suite", *few], installed)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "masked_mean" in done.stdout
    assert "given/built_in.py" in done.stdout
    assert "<title>Held · shardproof</title>" in (project / "page.html").read_text(encoding="utf-8")


@pytest.mark.lengthy
def test_programs_are_tests_of_a_project(installed: str, project: Path) -> None:
    """A program's tests run on workers under the project's own names, and replay."""
    (project / "tests" / "test_layer.py").write_text(
        "import impl, properties\nfrom shardproof import Program, program_test\n\n"
        "assert impl.MINE and properties.MINE\n\n\ndef double(x, *, data):\n    return x + x[::-1]\n\n\n"
        "DOUBLE = Program(double, lambda x: 2 * x, arguments=('n@data',), results='n@data')\n"
        "own_double = program_test(DOUBLE, laws=['value', 'communication'], max_examples=5)\n"
    )
    command = ["-m", "pytest", "-p", "no:cacheprovider"]
    done = started(project, [*command, "-n2"], installed)
    assert "2 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "FAILED tests/test_layer.py::own_double[simulate] - double: value" in done.stdout
    assert "= what was verified =" in done.stdout
    shows_again(done.stdout, "double: value: mesh", project, installed)
