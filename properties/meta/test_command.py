"""The command `shardproof`: each of its commands once, and what they exit with."""

from pathlib import Path

import jax
import pytest

from shardproof import command as module
from shardproof.command import main
from shardproof.properties.meta.runs import ROOT, command, python
from shardproof.properties.performance.chips import CHIPS
from shardproof.properties.performance.tpu_compiler.process import WAYS
from shardproof.properties.programs.examples import SHAPES


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
    return x + x


DOUBLE = Program(double, lambda x: 2 * x, arguments=("n@data",), results="n@data")
"""


def test_a_check_exits_with_what_it_found(tmp_path: Path) -> None:
    """`check` exits with 0 for what holds, 1 for what does not, 2 for what there is not, 3 if nothing was checked."""
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")

    def run(*arguments: str) -> tuple[int, str]:
        done = python("-m", "shardproof", *arguments, folder=tmp_path, PYTHONPATH=str(ROOT), JAX_PLATFORMS="cpu")
        return done.returncode, done.stdout + done.stderr

    few = ("--max-examples", "3", "--laws", "value")
    code, text = run("check", "mine:DOUBLE", *few)
    assert (code, text.splitlines()[0]) == (0, "double"), text
    code, text = run("check", "ring_shift=mine:shift", *few)
    assert code == 1
    assert "ring_shift[shift]: value: mesh (dp=2), axis 'dp': 2 of 2 blocks wrong" in text
    assert run("check", "mine:double") == (
        2,
        "Error: mine:double: expected a Program, got function; or CONTRACT=mine:double\n",
    )
    assert run("check", "mine:DOUBLE", "--claims", "all") == (
        2,
        "Error: --claims=all: expected none of mine:DOUBLE: a Program says it itself\n",
    )
    code, text = run("check", "mine:DOUBLE", "--max-examples", "3", "--laws", "communication")
    assert code == 3, text

    (file,) = (tmp_path / ".shardproof" / "failures").glob("*.json")
    code, text = run("replay", str(file), "--impl", "ring_shift=mine:shift")
    assert code == 1
    assert "2 of 2 blocks wrong" in text
    right = run("replay", str(file), "--impl", "ring_shift=shardproof.impl.collectives:ring_shift")
    assert right == (0, f"{file}: value holds\n")
    assert run("replay", str(file)) == (
        2,
        "Error: ring_shift[shift]: expected --impl ring_shift=MODULE:FUNCTION as well\n",
    )


def test_the_suite_is_that_of_the_checkout(tmp_path: Path) -> None:
    """`suite` runs `properties/suite` from anywhere with pytest's arguments; 3 is that no test was selected."""
    few = ("--smoke", "--laws", "value", "--engine", "simulate", "-p", "no:cacheprovider")
    done = python("-m", "shardproof", "suite", *few, "-k", "test_masked_mean", folder=tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "profile: few" in done.stdout
    done = python("-m", "shardproof", "suite", *few, "-k", "no_such_test", folder=tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 3, done.stdout + done.stderr


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
        (["choose", "mine:shift"], "mine:shift: expected a contract, of which this project has several forms"),
        (["draw", "mine:shift"], "name='mine:shift': expected CONTRACT=mine:shift"),
        (["tpu", "--recorded", "--contract", "matmul"], "--contract=matmul: expected a product; did you mean"),
        (["tpu", "--recorded", "--topology", "v5e:2"], "topology='v5e:2': expected one of"),
        (["choose"], "Missing argument 'NAME'."),
        (["timelines"], "No such command 'timelines'."),
    ],
)
def test_a_refusal_is_one_sentence(arguments: list[str], line: str) -> None:
    """What cannot be had exits with 2, and a sentence that names it."""
    done = command(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    (text,) = done.stderr.splitlines()
    assert text.startswith(f"Error: {line}")
