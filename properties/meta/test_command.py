"""The command `shardproof`: each of its commands once, and what they exit with."""

import subprocess
import sys
from pathlib import Path

import jax
import pytest

from shardproof import command as module
from shardproof.command import main
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.meta.runs import ROOT, command, python, work_in
from shardproof.properties.performance.chips import CHIPS
from shardproof.properties.performance.tpu_compiler import WAYS
from shardproof.properties.programs.examples import SHAPES
from shardproof.properties.report import doctor
from shardproof.properties.runner.contract_tests import of_contract


def test_help_lists_every_command_without_jax() -> None:
    """`python -m shardproof --help` lists each command in one section, and imports no JAX."""
    done = python("-X", "importtime", "-m", "shardproof", "--help")
    assert done.returncode == 0
    assert not [line for line in done.stderr.splitlines() if line.endswith(" jax")]
    listed = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")]
    names = [name for names in module.SECTIONS.values() for name in names]
    assert sorted(names) == sorted(main.commands)
    assert all(listed.count(name) == 1 for name in names)
    assert "0 it held, 1 a law is violated" in done.stdout
    assert "FILE.py:FUNCTION" in done.stdout
    assert "FILE.py in place of MODULE" in command("check", "--help").stdout
    assert command("suite", "-h").stdout == command("suite", "--help").stdout


def test_choices_are_those_of_the_suite() -> None:
    """The values that `--help` lists are those that there are."""
    assert tuple(CHIPS) == module.CHIPS
    assert tuple(SHAPES) == module.SHAPES
    assert module.WAYS == WAYS


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["choose", "all_reduce[lax]", "--shape", "64x64"], "all_reduce(bfloat16["),
        (
            ["tpu", "--recorded", "--shape", "book", "--way", "forward", "--contract", "matmul_all_reduce"],
            " book (1024,",
        ),
    ],
    ids=lambda given: given[0] if isinstance(given, list) else "",
)
def test_commands_print(arguments: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command prints what it found, and exits with 0."""
    monkeypatch.chdir(tmp_path)
    done = command(*arguments)
    assert done.exit_code == 0, done.output
    assert line in done.stdout


MINE = """
from jax import lax
from shardproof import Program


def shift(x, axis_name, *, offset=1):
    p = lax.axis_size(axis_name)
    return lax.ppermute(x, axis_name, [(i, (i + offset + 1) % p) for i in range(p)])


def double(x, *, data):
    return (x.astype("float64") + x).astype(x.dtype)


DOUBLE = Program(double, lambda x: 2 * x, arguments=("n@data",), results="n@data")
TWICE = Program(lambda x, *, data: x + x, lambda x: 2 * x, arguments=("n@data",), results="n@data")
"""


@pytest.fixture
def its(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a module of that name."""
    return work_in(tmp_path, monkeypatch, its=MINE)


def test_a_check_exits_with_what_it_found(its: Path) -> None:
    """`check` exits with 0 for what holds, 1 for what does not, 2 for what there is not, 3 if nothing was checked."""
    few = ("--max-examples", "3", "--laws", "value")
    with pytest.warns(UserWarning, match="float64") as shown:
        done = command("check", "its:DOUBLE", *few)
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, "double")
    assert len(shown) == 1  # in hundreds of traces
    done = command("check", "ring_shift=its:shift", *few)
    assert done.exit_code == 1
    assert "ring_shift[shift]: value: mesh (dp=2), axis 'dp': 2 of 2 blocks wrong" in done.stdout
    assert command("check", "its:TWICE", "--max-examples", "3", "--laws", "communication").exit_code == 3

    (file,) = (its / ".shardproof" / "failures").glob("*.json")
    done = command("replay", str(file), "--impl", "ring_shift=its:shift")
    assert done.exit_code == 1
    assert "2 of 2 blocks wrong" in done.stdout
    done = command("replay", str(file), "--impl", "ring_shift=shardproof.impl.collectives:ring_shift")
    assert (done.exit_code, done.stdout) == (0, f"{file}: value holds\n")
    done = command("replay", str(file))
    assert (done.exit_code, done.stderr) == (
        2,
        "Error: ring_shift[shift]: expected --impl ring_shift=MODULE:FUNCTION as well\n",
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["check", "its:double"], "its:double: expected a Program, got function; or CONTRACT=its:double"),
        (["check", "its:DOUBEL"], "its:DOUBEL: module its has no DOUBEL; did you mean 'DOUBLE'?"),
        (["check", "its.py:double"], "its:double: expected a Program, got function; or CONTRACT=its:double"),
        (["check", "it.py:double"], "it.py:double: no such file: it.py"),
        (
            ["check", f"{__file__}:double"],
            f"{__file__}:double: {__file__}: expected a file below the working directory, {{here}}",
        ),
        (
            ["check", "its:DOUBLE", "--claims", "all"],
            "--claims=all: its:DOUBLE is a Program: expected no claims, which only a contract has",
        ),
        (
            ["check", "its:DOUBLE", "--data", "real"],
            "--data=real: its:DOUBLE is a Program: expected data='real' in its own arguments",
        ),
        (["draw", "its:DOUBLE"], "its:DOUBLE: expected --shape, the arrays that it is called with"),
        (
            ["choose", "its:DOUBLE"],
            "its:DOUBLE: expected a contract, whose forms are compared; shardproof timeline its:DOUBLE times this one",
        ),
    ],
)
def test_a_function_is_named(arguments: list[str], line: str, its: Path) -> None:
    """A function that cannot be taken is refused with the names of what was typed, and of what is there."""
    done = command(*arguments)
    assert (done.exit_code, done.stderr) == (2, f"Error: {line.format(here=Path.cwd())}\n")


@pytest.mark.parametrize(("ended", "code"), [(0, 0), (1, 1), (5, 3), (4, 2)])
def test_the_suite_is_that_of_the_checkout(ended: int, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`suite` runs `properties/suite` from anywhere with pytest's arguments; 3 is that no test was selected."""
    called = list[list[str]]()

    def run(command: list[str], *, check: bool) -> subprocess.CompletedProcess[str]:
        called.append(command)
        return subprocess.CompletedProcess(command, ended)

    monkeypatch.setattr(subprocess, "run", run)
    assert command("suite", "--smoke", "--laws", "value", "-k", "mean").exit_code == code
    assert command("suite", "-n", "2").exit_code == code
    rooted = ["-c", f"{ROOT}/pyproject.toml", "--rootdir", f"{ROOT}"]
    smoke = [f"{ROOT}/properties/given/built_in.py", "--hypothesis-profile=few", "-m", "smoke", "-v"]
    assert called == [
        [sys.executable, "-m", "pytest", *rooted, *smoke, "--laws", "value", "-k", "mean"],
        [sys.executable, "-m", "pytest", *rooted, f"{ROOT}/properties/suite", "-v", "-n", "2"],
    ]


def test_a_smoke_test_has_every_contract() -> None:
    """One implementation of each contract is marked, on both engines."""
    _, tests = of_contract().args
    marked = [test.values for test in tests if any(mark.name == "smoke" for mark in test.marks)]
    for engine in ("simulate", "xla"):
        assert sorted(one.contract.name for one, on in marked if on == engine) == sorted(CONTRACTS)


def test_defects_are_shown_or_not() -> None:
    """`defects` says of each known defect whether its script shows it here."""
    done = command("defects", "grad_of_psum_unchecked", "gpu_small_product")
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert [name for name, _ in lines] == ["grad_of_psum_unchecked", "gpu_small_product"]
    assert lines[0][1].startswith("shows       With check_vma=False")
    assert done.exit_code == 0
    done = command("defects", "pmax_losesnan")
    assert (done.exit_code, done.stderr) == (
        2,
        "Error: name='pmax_losesnan': no such defect; did you mean 'pmax_loses_nan'?\n",
    )


def test_the_doctor_says_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """`doctor` prints versions, devices and what cannot run; flags that XLA does not know exit with 2."""
    monkeypatch.setattr(doctor, "BACKENDS", ("gpu",))  # of which each takes a process that imports JAX
    done = command("doctor")
    text = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert f"jax {jax.__version__}, " in text["packages"]
    assert done.exit_code == 0, done.output
    assert {"Python", "packages", "pytest", "XLA_FLAGS", "devices", "checks"} <= {*text}
    monkeypatch.setenv("XLA_FLAGS", "--xla_nonsense=1")
    done = command("doctor")
    assert done.exit_code == 2
    assert "cannot run: JAX: XLA_FLAGS='--xla_nonsense=1': expected flags that XLA knows" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["tpu", "--recorded", "--contract", "matmul"], "--contract=matmul: expected a product; did you mean"),
        (["tpu", "--recorded", "--topology", "v5e:2"], "topology='v5e:2': expected one of"),
        (["choose"], "Missing argument 'NAME'."),
        (["timelines"], "No such command 'timelines'."),
        (["defects", "nosuch"], "name='nosuch': no such defect; expected inverse_batch, "),
    ],
)
def test_a_refusal_is_one_sentence(arguments: list[str], line: str) -> None:
    """A command that cannot be carried out exits with 2, and a sentence that names why."""
    done = command(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    (text,) = done.stderr.splitlines()
    assert text.startswith(f"Error: {line}")
    assert len(text) < 400
