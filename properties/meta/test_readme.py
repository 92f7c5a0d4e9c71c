"""The README says what is so today."""

import math
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from configparser import ConfigParser
from pathlib import Path

import numpy as np
import pytest

from shardproof.properties.benchmark.products import markdown
from shardproof.properties.benchmark.readme import README, contracts, defects, features, laws, links, section
from shardproof.properties.cases.data import Data, generate
from shardproof.properties.contracts.whole import KINDS
from shardproof.properties.engines.references import MOST_DIFFERENCES, JaxReference, NumpyReference
from shardproof.properties.laws.doubles import DIGITS
from shardproof.properties.programs.implementations import IMPLEMENTATIONS
from shardproof.properties.reports.report import COLUMNS
from shardproof.properties.runner.reach import LARGEST

TEXT = README.read_text()


def test_the_laws_are_those_of_the_suite() -> None:
    """The README lists the laws as they are."""
    assert section(TEXT, "laws") == laws()


def test_the_transformations_are_those_of_the_suite() -> None:
    """The README lists all links of chains as they are."""
    assert section(TEXT, "links") == links()


def test_the_defects_are_those_of_the_registry() -> None:
    """The README lists the known defects as they are."""
    assert section(TEXT, "defects") == defects()


def test_the_products_are_those_of_the_suite() -> None:
    """What every form of a collective matrix product costs is computed."""
    assert section(TEXT, "products") == markdown()


def test_the_table_is_one_that_the_suite_wrote() -> None:
    """The table of what is verified has the report's columns, and counts all implementations, among others."""
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in section(TEXT, "verified").splitlines()
        if "|" in line
    ]
    assert rows[0] == ["implementations" if name == "implementation" else name for name in COLUMNS]
    counted = {row[0]: int(row[1]) for row in rows[2:]}
    assert all(counted[name] >= count for name, count in Counter(i.contract for i in IMPLEMENTATIONS).items())


def test_what_tox_leaves_out_the_workflow_has() -> None:
    """All tests of the suite itself on both ends, of which `tox` alone runs those that are not marked `lengthy`."""
    settings = ConfigParser(interpolation=None)
    settings.read(README.parent / "tox.ini")
    commands = settings["testenv"]["commands"]
    assert '\nbrief: pytest -n auto properties/meta -m "not lengthy" {posargs}' in commands
    workflow = (README.parent / ".github/workflows/ci.yml").read_text()
    for part in ("meta", "catalogue"):
        assert {f"py311-{part}", f"py313-{part}"} <= set(re.findall(r"[\w-]+", workflow))
        assert f"py311-{part}" in TEXT
    assert settings["meta"]["tests"] == "properties/meta --ignore=properties/meta/catalogue"
    assert "\ncatalogue: pytest -n auto properties/meta/catalogue {posargs}" in commands


def test_the_contracts_are_those_of_the_suite() -> None:
    """The README lists the signatures and the features as they are."""
    assert section(TEXT, "contracts") == contracts()
    assert section(TEXT, "features") == features()


@pytest.mark.parametrize(
    ("told", "number"),
    [
        (r"up to (\d+) elements of each argument", MOST_DIFFERENCES),
        (r"must equal it, to (\d+) digits", -math.log10(max(JaxReference.doubt[0], NumpyReference.doubt[0]))),
        (r"in values and to (\d+) in derivatives of a NumPy reference", -math.log10(NumpyReference.doubt[1])),
        (r"must equal its reference to (\d+) digits", -math.log10(DIGITS)),
        (r"grow with the mesh is interpreted on at most (\d+) devices", LARGEST),
    ],
)
def test_numbers_are_those_of_the_suite(told: str, number: float) -> None:
    """What the README says in digits stands in the code."""
    (found,) = re.findall(told, flat(TEXT))
    assert int(found) == number


def test_the_docstrings_that_say_how_operands_are_sharded_are_named() -> None:
    """Of every contract the module that has its first implementation, or the built-in one."""
    (told,) = re.findall(r"parameters mean what they mean in `jax.lax`, and the (.*?) say how operands", flat(TEXT))
    modules = {i.function.__module__ for i in {i.contract: i for i in reversed(IMPLEMENTATIONS)}.values()}
    files = {module.removeprefix("shardproof.").replace(".", "/") + ".py" for module in modules}
    assert files == set(re.findall(r"`([\w/]*\.py)`", told))


def test_numbers_are_of_the_size_that_is_told() -> None:
    """Of all kinds that a program of a user's own gets."""
    (most,) = re.findall(r"Numbers are drawn of a size of about 1, of at most (\d+),", flat(TEXT))
    drawn = [
        np.abs(generate(Data(kind, seed), (64,), np.dtype(dtype), terms=terms, degree=3)).astype(float)
        for kind in KINDS
        for seed in range(20)
        for dtype in ("float32", "bfloat16")
        for terms in (1, 4, 64)
    ]
    assert max(x.max() for x in drawn) <= int(most)
    assert 0.3 < np.median(np.concatenate(drawn)) < 2


def block(name: str, language: str) -> str:
    """The code in a section."""
    return section(TEXT, name).partition(f"```{language}\n")[2].partition("```")[0]


def ran(*command: str, folder: Path) -> str:
    """What a command prints."""
    environment = {**os.environ, "PYTHONPATH": str(README.parent), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["moe", "losses", "choose"])
def test_programs_run(name: str, tmp_path: Path) -> None:
    """Every program of these sections runs, and prints what stands below it."""
    assert ran(sys.executable, "-c", block(name, "python"), folder=tmp_path).split() == block(name, "text").split()


def test_timelines_are_drawn(tmp_path: Path) -> None:
    """The commands print the lanes, and draw them."""
    printed = ""
    for line in block("timeline", "sh").splitlines():
        module, *arguments = shlex.split(line)[2:]
        text = ran(sys.executable, "-m", module, *arguments, folder=tmp_path)
        printed += "".join(each for each in text.splitlines(keepends=True) if not each.startswith("wrote "))
    assert [line.rstrip() for line in printed.splitlines()] == block("timeline", "text").splitlines()
    assert len(list(tmp_path.glob("*.svg"))) == 2


def flat(text: str) -> str:
    """In one line."""
    return re.sub(r"\s+", " ", text)


def test_paths_exist() -> None:
    """Every file and folder of the project that the README names is there."""
    for path in re.findall(r"`((?:impl|oracles|properties)/[\w/.]*)`", TEXT):
        assert (README.parent / path.replace("NAME", "pmax_loses_nan")).exists(), path
