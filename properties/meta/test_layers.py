"""The layers of `properties`: imports go one way, in no circle."""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

pytestmark = pytest.mark.either_end

PROPERTIES = Path(__file__).resolve().parents[1]
PACKAGE = "shardproof.properties"

LAYERS: tuple[tuple[str, ...], ...] = (
    ("cases",),
    ("contracts",),
    ("programs",),
    ("engines",),
    ("precision",),
    ("references",),
    ("communication",),
    ("performance",),
    ("laws",),
    ("runner", "known_defects"),
    ("mutants",),
    ("conformance",),
    ("report",),
    ("performance.commands", "performance.measured"),
)
"""The folders of each layer, which import from their own and from those before.

The model of `performance` stands before the laws, one of which uses it; commands stand last.
"""

BESIDE = {"given", "meta", "suite", "regressions"}
"""Folders beside the layers, which use all of them: what is measured, and the tests."""


EACH_OTHER = ("cases.case", "contracts.contract")
"""A case carries its contract, which is about cases: the first imports the type of the second, and no more."""


def modules(folder: Path = PROPERTIES) -> dict[str, Path]:
    """All modules by their names within `properties`; its own is empty."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(source: str, known: Mapping[str, object]) -> Iterator[str]:
    """The modules of `properties` that a source imports, at its head or anywhere else in it."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            inner = name.removeprefix(f"{PACKAGE}.")
            if inner == name:
                continue
            yield inner if inner in known else inner.rpartition(".")[0]


def graph(found: Mapping[str, Path]) -> dict[str, set[str]]:
    """The imports of each module in a layer."""
    known = {name: {*imports(path.read_text(), found)} for name, path in found.items() if level(name) is not None}
    known[EACH_OTHER[0]].remove(EACH_OTHER[1])
    return known


def level(module: str) -> int | None:
    """The number of the layer that a module is in; None for what stands beside them."""
    levels = {folder: number for number, folders in enumerate(LAYERS) for folder in folders}
    parts = module.split(".")
    inner_first = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((levels[folder] for folder in inner_first if folder in levels), None)


def against(imported: Mapping[str, set[str]]) -> list[str]:
    """The imports against the direction of the layers."""
    found = []
    for name, others in imported.items():
        own = level(name)
        assert own is not None
        for other in sorted(others):
            at = level(other)
            if at is None or at > own:
                found.append(f"{name} imports {other or PACKAGE}")
    return found


def circle(imported: Mapping[str, set[str]]) -> list[str]:
    """The modules of a circle of imports, if there is one."""
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_every_folder_has_its_place() -> None:
    """A folder of `properties` is in a layer, or stands beside them."""
    folders = {path.name for path in PROPERTIES.iterdir() if path.is_dir() and not path.name.startswith((".", "__"))}
    assert folders == {folder.partition(".")[0] for layer in LAYERS for folder in layer} | BESIDE


def test_imports_go_one_way() -> None:
    """No module imports from a layer after its own, or from what stands beside the layers."""
    assert not against(graph(modules()))


def test_there_is_no_circle() -> None:
    """No module imports itself, by however many others, wherever in their sources."""
    assert not circle(graph(modules()))


def test_what_breaks_the_rules_is_found() -> None:
    """An import inside a function counts as well, and a circle through three modules is one."""
    known = dict.fromkeys(["cases.case", "laws.law", "runner.search", "meta.brief"])
    late = "def f():\n    from shardproof.properties.runner import search"
    typed = "if TYPE_CHECKING:\n    from shardproof.properties.meta.brief import marked"
    assert [*imports(late, known)] == ["runner.search"]
    assert against({"laws.law": {*imports(late, known)}}) == ["laws.law imports runner.search"]
    assert against({"laws.law": {*imports(typed, known)}}) == ["laws.law imports meta.brief"]
    assert not against({"runner.search": {"laws.law", "cases.case"}})
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})) == {"a", "b", "c"}


MOST_MODULES = 130
"""The most modules of this project that are imported before a user's own program is checked."""


def test_a_program_imports_no_contract() -> None:
    """What checks a user's own program imports no contract of this project, and no implementation of one."""
    code = "import sys, shardproof\nshardproof.check_program\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = [name for name in done.stdout.split() if name.startswith("shardproof.")]
    assert len(loaded) <= MOST_MODULES
    assert not {f"{PACKAGE}.programs.built_in", f"{PACKAGE}.contracts.collectives"} & {*loaded}
