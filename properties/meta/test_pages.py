"""The pages say what is so: tables are those of the suite, links lead somewhere, programs and commands run."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import jax
import pytest
import yaml
from packaging.requirements import Requirement

from shardproof.command import main
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.meta import pages
from shardproof.properties.meta.pages import (
    DESCRIBE_PAGE,
    DOCS,
    IMPL_PAGE,
    PAGES,
    PERFORMANCE_PAGE,
    ROOT,
    VERIFIED,
    block,
    rows_of,
)
from shardproof.properties.meta.runs import command, python, work_in
from shardproof.properties.report.checking import check_program

EACH_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
MODULE = "python -m shardproof.properties."


def test_the_front_page_is_short() -> None:
    """The README has fewer than 200 lines."""
    assert len(pages.README.read_text(encoding="utf-8").splitlines()) < 200


def test_tables_are_up_to_date() -> None:
    """Every computed table stands in its page as the suite has it today."""
    assert pages.main(["--check"]) == 0


def test_every_contract_was_verified() -> None:
    """The table of what is verified has a row for each contract, for what each shard computes, and for nothing else."""
    own = [f"{kind}shard_{name}" for kind in ("", "global_") for name in ("mean", "roll")]
    assert [row["contract"] for row in rows_of(VERIFIED.read_text(encoding="utf-8"))] == sorted([*CONTRACTS, *own])


@EACH_PAGE
def test_paths_exist(page: Path) -> None:
    """Every file and folder of the project that a page names is there."""
    for path in re.findall(r"\b((?:impl|oracles|properties)/[\w/.]*\w)", page.read_text(encoding="utf-8")):
        assert (ROOT / path.replace("NAME", "pmax_loses_nan")).exists(), path


NAMED = r"`@?(\w+)(?:\([^`]*\))?`\s+(?:in|of)\s+`((?:impl|oracles|properties|shardproof)/[\w/]*\.py)`"
"""A name that a page has with the file in which it is."""


def test_names_are_in_the_files_that_pages_name() -> None:
    """What a page says to be in a file is defined there."""
    named = {pair for page in PAGES for pair in re.findall(NAMED, page.read_text(encoding="utf-8"))}
    for name, path in named:
        assert re.search(rf"^(def |class |){name}\b", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), name
    examples = ("mean_of_means", "mutants/operations"), ("rule", "engines/simulate/env"), ("KINDS", "cases/data")
    assert named >= {(name, f"properties/{path}.py") for name, path in examples}


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@EACH_PAGE
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link leads to a file of the project, and to a heading that is in it."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert file.is_relative_to(ROOT), target
        assert not anchor or file.suffix != ".md" or anchor in anchors(file.read_text(encoding="utf-8")), target


OURS = ("told", "in vain", "anew", "alike", "held to", "so many", "spared", "asks", "fed", "meant")
"""Words for which the field, or plain English, has others: reported, redundant, again, equal, compared with, given."""

WORDS = re.compile(rf"(?<![A-Za-z])(?:{'|'.join(OURS).replace(' ', '[ _]')})(?![A-Za-z])", re.IGNORECASE)


@EACH_PAGE
def test_words_of_pages_are_those_of_the_field(page: Path) -> None:
    """No page has a word of our own; what a run printed is not checked."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert not WORDS.findall(prose if page != VERIFIED else "")


def test_words_of_code_are_those_of_the_field() -> None:
    """No name, comment, docstring or message has one either."""
    files = [path for folder in ("impl", "oracles", "properties", "shardproof/command.py") for path in paths(folder)]
    found = {path.relative_to(ROOT): WORDS.findall(path.read_text(encoding="utf-8")) for path in files}
    assert not {path: words for path, words in found.items() if words and path.name != Path(__file__).name}


def paths(name: str) -> list[Path]:
    """The Python files of a folder of the checkout, or one file."""
    return [ROOT / name] if name.endswith(".py") else sorted((ROOT / name).rglob("*.py"))


def run(*arguments: str, folder: Path) -> str:
    """The output of a Python process in a folder, with this checkout on its path."""
    done = python(*arguments, folder=folder, PYTHONPATH=str(ROOT), JAX_PLATFORMS="cpu", COLUMNS="200")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_first_program_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command of the first page checks the program above it."""
    work_in(tmp_path, monkeypatch, check_total=block(DOCS / "index.md", "total", "python"))
    printed = command("check", "check_total:TOTAL", "--max-examples", "3", "--laws", "value").stdout
    assert re.search(r"value +simulate +held +3 \(100%\)", printed)


@pytest.mark.parametrize("name", ["moe", "global-moe", "losses", "distillation"])
def test_programs_of_the_page_on_implementations_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each program prints what stands below it."""
    exec(block(IMPL_PAGE, name, "python"), {})  # noqa: S102
    assert capsys.readouterr().out.split() == block(IMPL_PAGE, name, "text").split()


def test_the_choice_of_a_form_runs() -> None:
    """The program's assertions hold."""
    exec(block(PERFORMANCE_PAGE, "choose-compiled", "python"), {})  # noqa: S102


def test_the_step_of_the_page_on_descriptions_is_right() -> None:
    """It passes, and a mean of gradients that JAX has added up already, which many write, is reported."""
    its: dict[str, Any] = {}
    exec(block(DESCRIBE_PAGE, "step", "python"), its)  # noqa: S102

    def mean_of_sums(weights: Any, x: Any, y: Any, *, data: Any) -> Any:
        gradients = jax.grad(its["error"])(weights, x, y)
        return its["updated"](weights, jax.tree.map(lambda g: jax.lax.pmean(g, data), gradients))

    few: dict[str, Any] = {"max_examples": 4, "random_seed": 1}
    check_program(its["step"], its["unsharded"], **its["STEP"], laws=["value", "gradient"], **few)
    with pytest.raises(AssertionError, match=r"value: mesh \(dp=2\)"):
        check_program(mean_of_sums, its["unsharded"], **its["STEP"], laws="value", **few)


def test_timelines_are_printed_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands print what stands below them, and draw lanes."""
    monkeypatch.chdir(tmp_path)
    commands = block(PERFORMANCE_PAGE, "timelines", "sh").splitlines()
    printed = [command(*shlex.split(line)[1:]).stdout for line in commands]
    lines = [line.rstrip() for text in printed for line in text.splitlines() if not line.startswith("wrote ")]
    assert lines == block(PERFORMANCE_PAGE, "timelines", "text").splitlines()
    assert len(list(tmp_path.glob("*.svg"))) == 2


def commands() -> Iterator[str]:
    """The commands of all pages, without comments."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for lines in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            yield from (line.partition("  #")[0].strip() for line in lines.strip().splitlines())
        prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        yield from re.findall(r"`((?:pytest|python -m|shardproof) [^`]+)`", re.sub(r"\s+", " ", prose))


def test_the_workflow_to_copy_takes_its_commands(tmp_path: Path) -> None:
    """It is YAML; the commands of its steps, for each version of its matrix, are those of pip, pytest and a shell."""
    text = block(DOCS / "ci.md", "workflow", "yaml")
    (job,) = yaml.safe_load(text)["jobs"].values()
    assert all(("run" in step) != ("uses" in step) for step in job["steps"])
    assert {*re.findall(r"matrix\.(\w+)", text)} == {*job["strategy"]["matrix"]} == {"jax"}
    *installed, summary = (step["run"] for step in job["steps"] if "run" in step)
    pip, pytest_ = map(shlex.split, installed)
    assert [pip[:2], pip[3:], pytest_[:1]] == [["pip", "install"], ["./vendor/shardproof-*.whl", "-e", "."], ["pytest"]]
    for version in job["strategy"]["matrix"]["jax"]:
        wanted = Requirement(pip[2].replace("${{ matrix.jax }}", version))
        assert (wanted.name, wanted.specifier.contains(f"{version}.0")) == ("jax", True)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").write_text("def test_one():\n    pass\n", encoding="utf-8")
    listed = run("-m", *pytest_, "--collect-only", "-q", "-p", "shardproof.plugin", folder=tmp_path)
    assert "tests/test_one.py::test_one" in listed
    for text in ("", "held"):  # without a report, as if the installation failed, and with one
        if text:
            (tmp_path / pytest_[-1]).write_text(text, encoding="utf-8")
        env = {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary")}
        assert subprocess.run(["bash", "-e", "-c", summary], cwd=tmp_path, env=env, check=False).returncode == 0
    assert (tmp_path / "summary").read_text(encoding="utf-8") == "held"


def test_tests_that_are_named_are_there() -> None:
    """A command of a page that names a file and a word selects tests."""
    named = sorted({line for line in commands() if line.startswith("pytest properties/") and " -k " in line})
    words = dict(line.removeprefix("pytest ").split(" -k ") for line in named)
    listed = run("-m", "pytest", *words, "--collect-only", "-q", "-p", "no:cacheprovider", folder=ROOT).splitlines()
    for file, word in words.items():
        assert [test for test in listed if test.startswith(f"{file}::") and word in test], (file, word)


@pytest.mark.parametrize("module", sorted({line.split()[2] for line in commands() if line.startswith(MODULE)}))
def test_modules_that_are_named_are_there(module: str, tmp_path: Path) -> None:
    """A module that a page starts says how it is used."""
    assert "usage:" in run("-m", module, "--help", folder=tmp_path)


@pytest.mark.parametrize("line", sorted({line for line in commands() if line.startswith("shardproof ")}))
def test_commands_that_are_named_are_there(line: str) -> None:
    """A command of a page is one of `shardproof`, and takes what it is given."""
    name, *arguments = shlex.split(line)[1:]
    with suppress(click.MissingParameter):  # prose names commands alone
        main.commands[name].make_context(name, arguments)
