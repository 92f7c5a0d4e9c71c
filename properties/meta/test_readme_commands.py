"""Every program and every command of the README files is run by a test."""

import re
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import pytest

from shardproof.properties.benchmark import readme
from shardproof.properties.benchmark.examples import of_commands, of_program, ran
from shardproof.properties.benchmark.readme import (
    COUNTING_PAGE,
    HOMES,
    PAGES,
    README,
    ROOT,
    block,
    section,
    with_section,
)
from shardproof.properties.meta.brief import marked
from shardproof.properties.report.programs import check_program

COMMAND = r"(?:pytest|python -m|pip|tox) [^`\n]+"
"""What a command begins with, in a block of commands or in a line."""


def commands() -> Iterator[str]:
    """All commands of all pages, without comments."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for lines in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            for line in lines.strip().splitlines():
                yield line.partition("  #")[0].strip()
        prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        yield from re.findall(rf"`({COMMAND})`", re.sub(r"\s+", " ", prose))


COMMANDS = sorted(set(commands()))
MODULE = "python -m shardproof.properties."
SET_UP = {
    "pip install -e . && pytest -n auto",
    "pip install tox && tox",
    "tox -e py311-meta,py311-catalogue",
    "tox -e tpu-compiler",
    "pytest -n auto --report report.md",
}
"""What `tox`, `.ci/run` and the workflow run."""

ELSEWHERE = {
    "pytest --impl ring_shift=mine:ring_shift": "test_plugin.py::test_the_failure_of_the_readme_is_what_happens",
    'pytest --impl all_gather_matmul_lhs=mine:gathered --expect-overlap "exposed<=0" -k overlap': (
        "test_overlap.py::test_the_command_of_the_readme"
    ),
    "pytest --impl CONTRACT=MODULE:FUNCTION": "test_packaging.py::test_a_given_function_is_checked_and_replayed",
    "pytest --replay=FILE": "test_packaging.py::test_a_given_function_is_checked_and_replayed",
    "pytest --keep-regression FILE": "test_program_tests.py::test_a_failure_is_told_replayed_kept_and_repaired",
    "pytest --devices=N": "test_plugin.py::test_the_readme_has_every_option",
    "pytest --help": "test_plugin.py::test_the_readme_has_every_option",
    "pytest -m tpu --platform tpu --devices 8 --require-tpu": (
        "test_accelerators.py::test_required_devices_that_are_not_there_are_a_failure"
    ),
    "pytest -m gpu --platform gpu --devices 8 --require-gpu --profile traces": (
        "test_accelerators.py::test_required_devices_that_are_not_there_are_a_failure"
    ),
    "pytest --platform gpu --devices 1 --engine xla": (
        "test_plugin.py::test_a_missing_platform_is_a_usage_error_with_a_reason"
    ),
    "pytest --platform gpu --devices 1 properties/meta/test_known_defects.py properties/meta/test_excuses.py "
    "properties/meta/test_at_fault.py -k gpu": (
        "test_plugin.py::test_a_missing_platform_is_a_usage_error_with_a_reason"
    ),
    "pytest -m tpu --platform tpu --devices 8 --impl all_gather_matmul_lhs=mine:gathered": (
        "test_accelerators.py::test_given_functions_are_measured_as_well"
    ),
    f"{MODULE}benchmark NAME": "test_readme_commands.py::test_every_benchmark_is_listed",
    f"{MODULE}benchmark.readme REPORT.md FAILURE.txt": "test_readme_commands.py::test_the_pages_are_written",
}
"""What other tests run: as it is, with values for what stands in capitals, or without the devices that it asks for."""

SHORTENED = {
    f"{MODULE}benchmark products": ["--devices", "2"],
    f"{MODULE}benchmark tpu": ["--shape", "book", "--way", "forward", "--contract", "all_gather_matmul_lhs"],
    f"{MODULE}benchmark agreement --recorded": ["--shape", "book"],
}
"""What a command is given besides, to take less time."""

PRINTED = {line for name in ("timeline", "timelines", "crossover") for line in block(name, "sh").splitlines()}
"""What stands above its own output, which a test below compares."""

RUN = [line for line in COMMANDS if line.startswith(MODULE) and line not in {*ELSEWHERE, *PRINTED}]
SELECTED = [line for line in COMMANDS if line.startswith("pytest properties/")]
OTHERS = [line for line in COMMANDS if line not in {*RUN, *SELECTED, *PRINTED, *ELSEWHERE, *SET_UP}]


def test_every_command_is_known() -> None:
    """Each is run here, or by the test that is named, which is there."""
    assert {*ELSEWHERE, *SET_UP} <= set(COMMANDS)
    assert OTHERS == ["pytest --impl mlp_loss=mine:loss", "pytest --impl test_mlp:MLP"]
    for place in ELSEWHERE.values():
        file, _, name = place.partition("::")
        assert f"\ndef {name}(" in (Path(__file__).parent / file).read_text(encoding="utf-8"), place


def test_what_sets_up_is_what_is_run() -> None:
    """`tox` installs the checkout as the first command does, and runs its tests; `.ci/run` installs and runs `tox`."""
    settings, script, workflow = (
        (ROOT / name).read_text(encoding="utf-8") for name in ("tox.ini", ".ci/run", ".github/workflows/ci.yml")
    )
    assert "\npackage = editable\n" in settings
    assert "\n    !py313-d8: pytest -n auto --devices 8 {posargs}\n" in settings  # 8 is the default
    assert re.search(r'pip install .*"tox>=', script)
    assert re.search(r"/tox run ", script)
    assert "--report report.md" in workflow
    for version in ("0.10.2", "0.12"):
        assert f"jax=={version}" in settings
        assert f"tests JAX {version}" in " ".join(README.read_text(encoding="utf-8").split())


@pytest.mark.lengthy
@pytest.mark.parametrize("line", RUN)
def test_commands_run(line: str, tmp_path: Path) -> None:
    """They end well, and print something."""
    (tmp_path / "mine.py").write_text(block("mine", "python"), encoding="utf-8")
    assert ran(*shlex.split(line)[1:], *SHORTENED.get(line, ()), folder=tmp_path).strip()


@pytest.mark.parametrize("filtered", [False, pytest.param(True, marks=pytest.mark.lengthy)], ids=["files", "-k"])
def test_tests_are_there(filtered: bool) -> None:
    """What is to be run with pytest selects tests, which `tox` runs."""
    lines = [line.split()[1:] for line in SELECTED if (" -k " in line) == filtered]
    for words in lines if filtered else [sorted({path for line in lines for path in line})]:
        found = ran("-m", "pytest", *words, "--collect-only", "-q", "-p", "no:cacheprovider", folder=ROOT)
        assert all(f"\n{path}" in f"\n{found}" for path in words if path.startswith("properties/")), found


GIVEN = """
from shardproof.impl import losses


def loss(params, batch, *, mesh, data, model):
    return losses.data_parallel(params, batch, mesh=mesh, data=data, model=model)
"""
LAYER = block("program", "python") + block("program-tests", "python")
FEW = ["--hypothesis-profile=matrix", "-p", "no:cacheprovider", "-k", "value-simulate"]


@pytest.mark.lengthy
@pytest.mark.parametrize(("line", "module", "source"), [(OTHERS[0], "mine", GIVEN), (OTHERS[1], "test_mlp", "")])
def test_functions_are_checked(line: str, module: str, source: str, tmp_path: Path) -> None:
    """A loss, and the `Program` that is printed there."""
    (tmp_path / f"{module}.py").write_text(source or LAYER, encoding="utf-8")
    assert "1 passed" in ran("-m", *shlex.split(line), *FEW, folder=tmp_path)


def test_every_benchmark_is_listed() -> None:
    """In the table of the page on the suite, by the names that the command takes."""
    page = (ROOT / "properties/README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \|", page.partition("## Benchmarks")[2].partition("\n## ")[0], re.MULTILINE)
    (named,) = re.findall(r"one of ([\w, ]+) \(default", " ".join(ran("-m", f"{MODULE[10:]}benchmark", "-h").split()))
    assert sorted(listed) == sorted(named.split(", "))


@pytest.mark.lengthy
def test_the_pages_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a report and a failure, and from the suite, the generator makes of empty sections those that stand there."""
    report, failure = tmp_path / "report.md", tmp_path / "failure.txt"
    report.write_text(
        f"## What was verified\n\n{section('verified-in-full')}\n\n## By implementation\n", encoding="utf-8"
    )
    failure.write_text(block("failure", "text"), encoding="utf-8")
    # what another version of JAX traces is another text, which test_readme compares
    monkeypatch.setattr(readme, "TRACED", {name: partial(str, section(name)) for name in readme.TRACED})
    written = (*readme.COMPUTED, *readme.TRACED, "verified", "verified-in-full", "failure")
    homes = {name: tmp_path / f"{PAGES.index(page)}.md" for name, page in HOMES.items()}
    for page in set(HOMES.values()):
        text = page.read_text(encoding="utf-8")
        for name in written:
            text = with_section(text, name, "") if HOMES[name] == page else text
        (tmp_path / f"{PAGES.index(page)}.md").write_text(text, encoding="utf-8")
    monkeypatch.setattr(readme, "HOMES", homes)
    monkeypatch.setattr("sys.argv", ["readme", str(report), str(failure)])
    readme.main()
    for name, page in HOMES.items():
        assert homes[name].read_text(encoding="utf-8") == page.read_text(encoding="utf-8")


RUN = ["moe", "global-moe", "losses", "choose", "choose-compiled", "distillation"]


@pytest.mark.parametrize("name", marked(RUN, ["moe", "losses", "choose-compiled"]))
def test_programs_run(name: str, tmp_path: Path) -> None:
    """Every program of these sections runs, and prints what stands below it."""
    assert of_program(block(name, "python"), tmp_path).split() == block(name, "text").split()


@pytest.mark.lengthy
def test_the_step_of_the_page() -> None:
    """It is right; and a mean of gradients that JAX has added up already, which many write, is wrong."""
    its: dict[str, Any] = {}
    exec(block("step", "python"), its)  # noqa: S102

    def mean_of_sums(weights: Any, x: Any, y: Any, *, data: Any) -> Any:
        gradients = jax.grad(its["error"])(weights, x, y)
        return its["updated"](weights, jax.tree.map(lambda g: jax.lax.pmean(g, data), gradients))

    few: dict[str, Any] = {"laws": ["value", "gradient"], "max_examples": 10, "random_seed": 1}
    check_program(its["step"], its["unsharded"], **its["STEP"], **few)
    with pytest.raises(AssertionError, match=r"value: mesh \(dp=2\)"):
        check_program(mean_of_sums, its["unsharded"], **its["STEP"], **few)


@pytest.mark.parametrize(("name", "pictures"), [("timeline", 1), ("timelines", 2), ("crossover", 1)])
def test_timelines_are_drawn(name: str, pictures: int, tmp_path: Path) -> None:
    """The commands print the lanes, and draw them; the plot of the crossover is the one on the page."""
    assert of_commands(block(name, "sh"), tmp_path).splitlines() == block(name, "text").splitlines()
    drawn = list(tmp_path.glob("*.svg"))
    assert len(drawn) == pictures
    if name == "crossover":
        assert drawn[0].read_text("utf-8") == (COUNTING_PAGE.parent / "crossover.svg").read_text("utf-8")
