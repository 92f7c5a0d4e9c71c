"""The command `shardproof`: each of its commands once, and what they exit with."""

from pathlib import Path

import pytest

from shardproof import command as module
from shardproof.command import main
from shardproof.properties.meta.runs import command, python
from shardproof.properties.performance.chips import CHIPS
from shardproof.properties.performance.commands.crossover import SIDES
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
    assert module.SIDES == SIDES
    assert module.WAYS == WAYS


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["choose", "all_reduce[lax]", "--shape", "64x64"], "all_reduce(bfloat16["),
        (
            ["tpu", "--recorded", "--shape", "book", "--way", "forward", "--contract", "matmul_all_reduce"],
            " book (1024,",
        ),
        (["agreement", "--recorded", "--shape", "book"], "programs: half of them within a factor of"),
        (["crossover", "matmul_all_reduce", "--output", "crossed.svg"], "matmul_all_reduce on v5e, by m:"),
    ],
    ids=lambda given: given[0] if isinstance(given, list) else "",
)
def test_commands_print(arguments: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command prints what it found, and exits with 0."""
    monkeypatch.chdir(tmp_path)
    done = command(*arguments)
    assert done.exit_code == 0, done.output
    assert line in done.stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["choose", "mine:shift"], "mine:shift: expected a contract, of which this project has several forms"),
        (["draw", "mine:shift"], "name='mine:shift': expected CONTRACT=mine:shift"),
        (["tpu", "--recorded", "--contract", "matmul"], "--contract=matmul: expected a product; did you mean"),
        (["tpu", "--recorded", "--topology", "v5e:2"], "topology='v5e:2': expected one of"),
        (["crossover"], "Missing argument 'CONTRACT'."),
        (["timelines"], "No such command 'timelines'."),
    ],
)
def test_a_refusal_is_one_sentence(arguments: list[str], line: str) -> None:
    """What cannot be had exits with 2, and a sentence that names it."""
    done = command(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    (told,) = done.stderr.splitlines()
    assert told.startswith(f"Error: {line}")
