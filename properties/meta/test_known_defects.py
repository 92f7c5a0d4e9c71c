"""Each known defect is shown by its script, on the versions of JAX that it was seen on and on no other."""

import ast
import re
import sys
from pathlib import Path

import jax
import pytest

from shardproof.properties.known_defects import DEFECTS, Defect, release
from shardproof.properties.known_defects.registry import OWN
from shardproof.properties.meta.runs import forked
from shardproof.properties.meta.test_layers import imported, package
from shardproof.properties.runner.platforms import BACKENDS

FOLDER = next(iter(DEFECTS.values())).script.parent
ENTRIES = pytest.mark.parametrize("defect", DEFECTS.values(), ids=lambda defect: defect.name)


def test_every_defect_has_a_script_and_every_script_an_entry() -> None:
    """The scripts in the folder are those of the registry."""
    assert {path.stem for path in FOLDER.glob("*.py")} - OWN == set(DEFECTS)
    assert all(name == defect.name for name, defect in DEFECTS.items())


@ENTRIES
def test_a_script_fits_a_bug_report(defect: Defect) -> None:
    """A script is at most 25 lines, begins with what is wrong, and needs JAX, NumPy and nothing else."""
    source = defect.script.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 25
    assert ast.get_docstring(ast.parse(source))
    assert {*map(package, imported(source))} <= {"jax", "numpy"} | sys.stdlib_module_names
    assert f'jax.config.update("jax_platforms", "{BACKENDS[defect.platform or "cpu"]}")' in source
    assert ('jax.config.update("jax_num_cpu_devices", ' in source) == (defect.platform in ("", "cpu"))


@ENTRIES
def test_an_entry_says_what_and_where(defect: Defect) -> None:
    """A defect has a sentence and the versions that it was seen on."""
    assert defect.sentence.endswith(".")
    assert defect.seen_on
    assert all(re.fullmatch(r"\d+(\.\d+)+", version) for version in defect.seen_on)


@ENTRIES
def test_a_script_shows_its_defect_where_it_was_seen(
    defect: Defect, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    """A script shows its defect on the versions that are taken to have it, and exits with 0 on all others."""
    if defect.platform not in ("", "cpu", pytestconfig.getoption("--platform")):
        pytest.skip(f"{defect.script.name} shows a defect on a {defect.platform.upper()}: expected --platform, on one")
    if defect.platform == "gpu" and not defect.in_version(jax.__version__):
        pytest.skip(f"{defect.script.name} was run with JAX {', '.join(defect.seen_on)} alone")
    expected = defect.in_version(jax.__version__)
    exitcode, printed = forked(defect.script, tmp_path / "printed")
    assert defect.is_shown(exitcode, printed) if expected else exitcode == 0, (
        f"{defect.script.name} exited with {exitcode} on JAX {jax.__version__}, "
        f"but seen_on={defect.seen_on}:\n{printed}"
    )


@pytest.mark.parametrize(
    ("version", "numbers"),
    [
        ("0.10.2", (0, 10, 2)),
        ("0.12.0.1", (0, 12, 0, 1)),
        ("0.12.0", (0, 12)),
        ("0.12.0.1.dev20260101+g12ab", (0, 12, 0, 1)),
        ("0.13.0rc1", (0, 13)),
    ],
)
def test_versions_are_compared_by_their_numbers(version: str, numbers: tuple[int, ...]) -> None:
    """A version is its numbers, without what is appended and without zeros at the end."""
    assert release(version) == numbers
